"""Work and streams without a server: how each ends when its client leaves, the service closes, or both at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from service.errors import UnavailableError
from service.http.disconnect import ClientGone, LastOrders, run_until_disconnect
from service.http.event_stream import DONE, EventStream, event

Message = dict[str, Any]


def receiving(*kinds: str) -> Callable[[], Awaitable[Message]]:
    """Messages of these kinds, and then none."""
    left = list(kinds)

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return {"type": left.pop(0)}

    return receive


class Work:
    """Goes on for ever unless `ends`, and takes a moment to clean up."""

    def __init__(self, ends: bool = False) -> None:
        self._ends = ends
        self.cleaned = False

    async def run(self) -> str:
        try:
            if not self._ends:
                await asyncio.Event().wait()
            return "done"
        finally:
            await asyncio.sleep(0.01)
            self.cleaned = True


def test_a_client_that_leaves_ends_its_work_which_has_cleaned_up_by_then() -> None:
    async def body() -> None:
        work = Work()
        with pytest.raises(ClientGone):
            await run_until_disconnect(receiving("http.request", "http.disconnect"), work.run(), LastOrders())
        assert work.cleaned and len(asyncio.all_tasks()) == 1

    asyncio.run(body())


def test_last_orders_end_work_with_a_word() -> None:
    async def body() -> None:
        work, orders = Work(), LastOrders()
        asyncio.get_running_loop().call_soon(orders.call)
        with pytest.raises(UnavailableError, match="waits no longer"):
            await run_until_disconnect(receiving(), work.run(), orders)
        assert work.cleaned

    asyncio.run(body())


def test_work_that_is_done_is_answered_though_the_client_leaves_at_the_same_time() -> None:
    async def done() -> str:
        return "done"

    async def body() -> None:
        assert await run_until_disconnect(receiving("http.disconnect"), done(), LastOrders()) == "done"

    asyncio.run(body())


def test_what_is_no_leaving_ends_nothing() -> None:
    async def body() -> None:
        asked = run_until_disconnect(receiving("http.request"), Work(ends=True).run(), LastOrders())
        assert await asked == "done"

    asyncio.run(body())


class Stream:
    """An `EventStream` of one event that then waits, what it sent, and whether all was closed in order."""

    def __init__(self, *, ends: bool, stuck: bool = False) -> None:
        self.sent: list[Message] = []
        self.closed: list[str] = []
        self.orders = LastOrders()
        self._ends, self._stuck = ends, stuck

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            yield event({"text": "é"})
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.closed.append("events")

    async def _send(self, message: Message) -> None:
        """Where it is `stuck`, nobody reads what comes behind the first event."""
        self.sent.append(message)
        if self._stuck and self.body:
            await asyncio.Event().wait()

    async def serve(self, leaves: bool = False) -> None:
        """To a client that leaves after the first event, or stays."""

        async def receive() -> Message:
            while not leaves or not self.body:
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        resources = AsyncExitStack()
        resources.callback(self.closed.append, "resources")
        response = EventStream(self._events(), resources, {"x-cache": "none"}, 30.0, self.orders)
        await response({"type": "http"}, receive, self._send)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def test_a_stream_that_ends_says_so_and_has_closed_everything() -> None:
    stream = Stream(ends=True)
    asyncio.run(stream.serve())
    start, *_, last = stream.sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no"
    assert headers["x-cache"] == "none" and "content-length" not in headers
    assert stream.body == 'data: {"text":"é"}\n\n'.encode() and last["more_body"] is False
    assert stream.closed == ["events", "resources"]


@pytest.mark.parametrize("stuck", [False, True])
def test_a_stream_that_nobody_reads_any_more_is_closed_without_another_word(stuck: bool) -> None:
    stream = Stream(ends=False, stuck=stuck)
    asyncio.run(stream.serve(leaves=True))
    assert all(message.get("more_body", True) for message in stream.sent)
    assert stream.closed == ["events", "resources"]


def test_last_orders_end_a_stream_with_one_error_and_its_mark() -> None:
    async def body() -> None:
        stream = Stream(ends=False)
        asyncio.get_running_loop().call_later(0.05, stream.orders.call)
        await stream.serve()
        *_, error, done, _ = stream.body.split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "draining"
        assert done + b"\n\n" == DONE and stream.sent[-1]["more_body"] is False
        assert stream.closed == ["events", "resources"]

    asyncio.run(body())
