"""Work ends when its client leaves, streamed or not, and when the service waits for nobody any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from service.errors import UnavailableError

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed its connection; nobody will read an answer."""


class LastOrders:
    """Called once, when the service is about to go and waits for nothing that still runs."""

    def __init__(self) -> None:
        self._called: asyncio.Future[None] | None = None

    def call(self) -> None:
        """To be called on the loop."""
        if not self.called.done():
            self.called.set_result(None)

    @property
    def called(self) -> asyncio.Future[None]:
        if self._called is None:
            self._called = asyncio.get_running_loop().create_future()
        return self._called


async def run_until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, Result], last_orders: LastOrders
) -> Result:
    """The result of `work`. If the client leaves first, `work` is cancelled, has cleaned up when this returns, and
    `ClientGone` is raised; after last orders likewise with `UnavailableError`. The body must have been read before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    ends: set[asyncio.Future[Any]] = {task, watch, last_orders.called}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.done():
            raise ClientGone
        raise UnavailableError(
            "draining", "The service is shutting down and waits no longer.", retry_after=5.0
        )
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
