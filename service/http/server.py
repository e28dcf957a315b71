"""uvicorn that goes on answering while it drains."""

from __future__ import annotations

import logging
import socket
import time
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from service.http.admission import Admission
from service.http.protocol import BoundedProtocol
from service.settings import Settings

_log = logging.getLogger("conduit.start")
_LAST_WORDS_SECONDS: Final = 2
"""After the drain time, for error events to be written and connections to close."""

SERVING: Final[dict[str, Any]] = {
    "loop": "uvloop",
    "http": BoundedProtocol,
    "ws": "none",
    "log_config": None,
    "access_log": False,
}
"""uvicorn's options, wherever the app is served; all named, so that no package that happens to be there changes one."""


class DrainingServer(uvicorn.Server):
    """From the first signal on it refuses new requests in words, not by a closed port, until the running ones
    have ended or had their time. A second signal does not wait for them."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            **SERVING,
            timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        )
        super().__init__(config)
        self._admission: Admission = app.state.services.admission
        self._patience = settings.drain_timeout + _LAST_WORDS_SECONDS
        self._give_up_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _log.info("listening", extra={"url": _url(*self.servers[0].sockets[0].getsockname()[:2])})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._admission.draining:
            super().handle_exit(sig, frame)
        self._admission.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._admission.draining and self._drained():
            self.should_exit = True
        return await super().on_tick(counter)

    def _drained(self) -> bool:
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._patience
            _log.info("stopping", extra={"running": self._admission.running, "patience": self._patience})
        return self._admission.running == 0 or now >= self._give_up_at


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
