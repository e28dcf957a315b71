"""The events of one request as the HTTP side takes them: with a deadline, and never left open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

from engine.client import EngineClient
from engine.messages import Accepted, Event, Failed, Finished, GenerateRequest, TextDelta
from service.errors import ServiceError, UnavailableError, error_kind

_log = logging.getLogger(__name__)
_RETRY_AFTER: Final = 1.0


class Generation:
    """`deadline` is on the clock of the running loop. Use as an async context manager: leaving it ends the
    request."""

    def __init__(self, client: EngineClient, request: GenerateRequest, deadline: float) -> None:
        self._events = client.submit(request)
        self._deadline = deadline
        self._pending: asyncio.Task[Event | None] | None = None

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        await self._events.aclose()

    async def accepted(self) -> Accepted:
        """Wait until the engine takes the request. Raises `ServiceError` if it does not."""
        event = await self._next(None)
        if isinstance(event, Accepted):
            return event
        raise _broken("began with something else than Accepted")

    async def output(self, ping_interval: float) -> AsyncGenerator[TextDelta | Finished | None, None]:
        """Text until `Finished`, which is the last; None each time `ping_interval` seconds passed with
        nothing to say. Raises `ServiceError` when the engine fails or the deadline passes."""
        while True:
            event = await self._next(ping_interval)
            if isinstance(event, Accepted):
                raise _broken("was accepted twice")
            yield event
            if isinstance(event, Finished):
                return

    async def _next(self, patience: float | None) -> Accepted | TextDelta | Finished | None:
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._pull())
        left = self._deadline - asyncio.get_running_loop().time()
        await asyncio.wait(
            {self._pending}, timeout=max(0.0, left if patience is None else min(left, patience))
        )
        if not self._pending.done():
            if patience is None or left <= patience:
                raise UnavailableError("request_timeout", "The request took longer than this service allows.")
            return None
        task, self._pending = self._pending, None
        return _checked(task)

    async def _pull(self) -> Event | None:
        return await anext(self._events, None)


def _checked(task: asyncio.Task[Event | None]) -> Accepted | TextDelta | Finished:
    try:
        event = task.result()
    except Exception:
        _log.exception("the engine's event stream raised")
        raise _broken("raised") from None
    if event is None:
        raise _broken("ended without a terminal event")
    if isinstance(event, Failed):
        retry_after = _RETRY_AFTER if error_kind(event.code).status in (429, 503) else None
        raise ServiceError(event.code, event.message, retry_after=retry_after)
    return event


def _broken(how: str) -> ServiceError:
    _log.error("the engine's event stream %s", how)
    return ServiceError("internal_error", "The engine failed; the cause is in the server's log.")
