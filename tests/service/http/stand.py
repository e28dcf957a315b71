"""The front end on the fake engine in a process of its own, and somebody in another one who watches it: what a test
does meanwhile with its own interpreter disturbs neither."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
from fastapi import FastAPI

from demo.service_process import HOST, free_port
from service.app import create_app
from service.http.server import DrainingServer, settle
from service.settings import Settings, load_settings
from tests.service.fake_engine import FakeEngine
from tests.service.serving import eventually

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Stand:
    """`holds` are there at its end: the longest times that its loop was held, in seconds of its own processor time,
    which a busy machine does not stretch."""

    url: str
    pid: int
    holds: list[float] = field(default_factory=list)

    def memory(self, name: str = "VmRSS") -> int:
        """Bytes: what it holds, or (`VmHWM`) the most it ever held."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024


@contextmanager
def front_end(*launcher: str, **settings: str) -> Iterator[Stand]:
    """Running with these settings; `launcher` is put before its command."""
    port = free_port()
    ours = {f"CONDUIT_{name.upper()}": value for name, value in {**settings, "port": str(port)}.items()}
    command = [*launcher, sys.executable, "-m", "tests.service.http.stand", "serve"]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **ours}, stdout=subprocess.PIPE) as process:
        stand = Stand(f"http://{HOST}:{port}", process.pid)
        try:
            eventually(lambda: _answers(stand), "the front end starts")
            yield stand
        finally:
            process.send_signal(signal.SIGINT)
            stand.holds.extend(json.loads(process.communicate(timeout=60)[0]))


@contextmanager
def watched(stand: Stand) -> Iterator[list[float]]:
    """Seconds of every answer of `/livez` until the end of the context, there at its end."""
    command = [sys.executable, "-m", "tests.service.http.stand", "watch", stand.url]
    seconds: list[float] = []
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield seconds
        finally:
            seconds += json.loads(process.communicate()[0])


def _answers(stand: Stand) -> bool:
    try:
        return httpx.get(f"{stand.url}/livez", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


class WatchfulServer(DrainingServer):
    """Notes how long its loop is held."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(app, settings)
        self.holds: list[float] = []
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watching = asyncio.create_task(self._watch())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0.001)
            self.holds = sorted([*self.holds, time.process_time() - before], reverse=True)[:10]


def _serve() -> None:
    engine = FakeEngine()
    engine.remember = False
    settings = load_settings()
    server = WatchfulServer(create_app(settings, engine), settings)
    settle()
    with suppress(KeyboardInterrupt):
        server.run()
    print(json.dumps(server.holds), flush=True)


def _watch(url: str) -> None:
    """Until somebody closes our input."""
    os.set_blocking(sys.stdin.fileno(), False)
    seconds = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        while cast(Any, sys.stdin.buffer).raw.read(1) is None:
            started = time.monotonic()
            client.get("/livez").raise_for_status()
            seconds.append(time.monotonic() - started)
            time.sleep(0.005)
    print(json.dumps(seconds))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve()
    else:
        _watch(sys.argv[2])
