"""uvicorn that goes on answering while it drains."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from functools import partial
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from service.http.admission import Admission
from service.http.connections import Connections, most_connections, patience
from service.http.disconnect import LastOrders
from service.http.protocol import BoundedProtocol
from service.settings import Settings

_log = logging.getLogger("conduit.start")
_LAST_WORDS_SECONDS: Final = 2
"""After the drain time, for error events to be written and connections to close."""


class DrainingServer(uvicorn.Server):
    """From the first signal on it refuses new requests in words, not by a closed port, until the running ones
    have ended or had their time. A second signal does not wait for them. What still runs when it goes is told so."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        self.connections = Connections(most_connections(settings))
        # All are named, so that no package that happens to be there changes one.
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            loop="uvloop",
            http=partial(BoundedProtocol, self.connections, patience(settings)),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=settings.idle_timeout,  # type: ignore[arg-type]  # a part of a second is fine
            timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        )
        super().__init__(config)
        self._admission: Admission = app.state.services.admission
        self._last_orders: LastOrders = app.state.services.last_orders
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
        if self.should_exit:
            self._last_orders.call()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # its client does not take what was sent
        await asyncio.sleep(0)

    def _drained(self) -> bool:
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._patience
            _log.info("stopping", extra={"running": self._admission.running, "patience": self._patience})
        return self._admission.running == 0 or now >= self._give_up_at


def settle() -> None:
    """To be called once all is loaded: the collector does not look at what is there now again and again, which would
    hold the loop for as long as the longest body does."""
    gc.collect()
    gc.freeze()


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
