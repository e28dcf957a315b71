"""The events of one request as the HTTP side takes them: with a deadline, and never left open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from engine.client import EngineClient
from engine.messages import Accepted, CallDelta, Ended, Failed, Finished, GenerateRequest, TextDelta
from service.errors import ImageError, ServiceError, UnavailableError, error_kind

Output = TextDelta | CallDelta | Ended | Finished

_log = logging.getLogger(__name__)
_RETRY_AFTER: Final = 1.0


class Generation:
    """`deadline` is on the clock of the running loop, `image_params` are the fields of the request's images. Use as
    an async context manager: leaving it ends the request."""

    def __init__(
        self, client: EngineClient, request: GenerateRequest, deadline: float, image_params: Sequence[str]
    ) -> None:
        self._events = client.submit(request)
        self._deadline = deadline
        self._image_params = image_params

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._events.aclose()

    async def accepted(self) -> Accepted:
        """Wait until the engine takes the request. Raises `ServiceError` if it does not."""
        event = await self._next()
        if isinstance(event, Accepted):
            return event
        raise _broken("began with something else than Accepted")

    async def output(self) -> AsyncGenerator[Output, None]:
        """Text and ends of answers until `Finished`, which is the last. Raises `ServiceError` when the engine fails or
        the deadline passes."""
        while True:
            event = await self._next()
            if isinstance(event, Accepted):
                raise _broken("was accepted twice")
            yield event
            if isinstance(event, Finished):
                return

    async def _next(self) -> Accepted | Output:
        # Events that are there already are handed out without a wait: who reads slowly must not go on for ever.
        if asyncio.get_running_loop().time() >= self._deadline:
            raise _timed_out()
        try:
            async with asyncio.timeout_at(self._deadline) as limit:
                event = await anext(self._events, None)
        except Exception:
            if limit.expired():
                raise _timed_out() from None
            _log.exception("the engine's event stream raised")
            raise _broken("raised") from None
        if event is None:
            raise _broken("ended without a terminal event")
        if isinstance(event, Failed):
            raise self._failure(event)
        return event

    def _failure(self, event: Failed) -> ServiceError:
        if event.image is not None:
            return ImageError(event.code, event.message).at(event.image + 1, self._image_params[event.image])
        retry_after = _RETRY_AFTER if error_kind(event.code).status in (429, 503) else None
        return ServiceError(event.code, event.message, retry_after=retry_after)


def _timed_out() -> UnavailableError:
    return UnavailableError("request_timeout", "The request took longer than this service allows.")


def _broken(how: str) -> ServiceError:
    _log.error("the engine's event stream %s", how)
    return ServiceError("internal_error", "The engine failed; the cause is in the server's log.")
