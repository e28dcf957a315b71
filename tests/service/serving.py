"""Real servers on loopback: the app under uvicorn, and hosts that serve images well or badly."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI

from service.http.server import DrainingServer
from service.settings import Settings

PATIENCE = 20.0
"""Seconds after which a wait in a test gives up. Never a limit on how fast something has to be."""


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.005)


@dataclass
class Served:
    url: str
    server: uvicorn.Server
    thread: threading.Thread

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)


@contextlib.contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[Served]:
    """`app` under the server that it really runs under, in a thread; port 0 takes a free one."""
    settings: Settings = app.state.services.settings
    with running(DrainingServer(app, settings.model_copy(update={"port": port}))) as served:
        yield served


@contextlib.contextmanager
def running(server: uvicorn.Server) -> Iterator[Served]:
    """`server` in a thread, until the end of the context or its own."""
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "the server starts")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(f"http://127.0.0.1:{port}", server, thread)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


Answer = Callable[[socket.socket, str], None]
"""Gets the connection and the request's head; writes whatever it likes."""


def http(body: bytes, *headers: str, status: str = "200 OK", length: bool = True) -> Answer:
    """A plain answer."""
    lines = [f"HTTP/1.1 {status}", *headers, *([f"content-length: {len(body)}"] if length else [])]
    return lambda connection, _: connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)


def redirect(location: str) -> Answer:
    return http(b"", f"location: {location}", status="302 Found")


@dataclass
class Host:
    """A server of images. `routes` maps a path to what it answers; `heads` are the requests it saw."""

    port: int
    stopping: threading.Event
    routes: dict[str, Answer] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)

    def url(self, path: str, name: str = "127.0.0.1") -> str:
        return f"http://{name}:{self.port}{path}"

    def hangs(self, path: str) -> str:
        """A URL that accepts the request and never answers."""

        def wait(connection: socket.socket, head: str) -> None:
            self.stopping.wait()

        return self.serves(path, wait)

    def serves(self, path: str, answer: Answer | bytes) -> str:
        self.routes[path] = http(answer) if isinstance(answer, bytes) else answer
        return self.url(path)


@contextlib.contextmanager
def image_host() -> Iterator[Host]:
    """A `Host` on loopback, in threads."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                received = self.request.recv(65536)
                if not received:
                    return
                head += received
            host.heads.append(head.decode("latin-1"))
            answer = host.routes.get(head.split(b" ")[1].decode(), http(b"", status="404 Not Found"))
            with contextlib.suppress(OSError):
                answer(self.request, head.decode("latin-1"))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        host = Host(server.server_address[1], threading.Event())
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield host
        finally:
            host.stopping.set()
            server.shutdown()
