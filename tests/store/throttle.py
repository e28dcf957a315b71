"""A slow line, for tests: a proxy in front of a server on this machine."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class SlowLine:
    """Passes `chunk` bytes and then rests `pause` seconds, each way; at first as fast as it can. Both may be changed at
    any time. `passed` counts the bytes from the server."""

    def __init__(self, port: int) -> None:
        self.chunk = 1 << 16
        self.pause = 0.0
        self.passed = 0
        self._target = port
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def __enter__(self) -> SlowLine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed.set()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            # Small buffers: what the kernel holds has not passed the line.
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            self._sockets += [near, far]
            self._start(self._pass, near, far, False)
            self._start(self._pass, far, near, True)

    def _pass(self, source: socket.socket, target: socket.socket, down: bool) -> None:
        with suppress(OSError):
            while data := source.recv(self.chunk):
                target.sendall(data)
                self.passed += len(data) * down
                if self.pause:
                    self._closed.wait(self.pause)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
