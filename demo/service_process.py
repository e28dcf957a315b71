"""The real service in a process of its own, on a free loopback port: for the demo, the benchmarks and the tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
POLL_SECONDS = 0.05
START_SECONDS = 180.0
STOP_SECONDS = 30.0


class ServiceDidNotStart(Exception):
    """The service ended, or was not ready in time. The message holds the last lines that it wrote."""


class ServiceProcess:
    """`python -m service` over the store in `folder`, serving the demo's pages, allowed to fetch from itself.

    settings: further `CONDUIT_*` variables by their names without the prefix, in lower case. The process is its own
    session: Ctrl-C reaches it through us only, so it always has its time to end.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._port = free_port()
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The base of all its URLs; the same after a restart."""
        return f"http://{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._folder / "service.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> float:
        """Start it and wait until it is ready; returns the seconds that took. Raises `ServiceDidNotStart`."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "service"],
                cwd=ROOT,
                env=self._environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(began + START_SECONDS)
        except BaseException:
            self.stop()
            raise
        return time.monotonic() - began

    def stop(self) -> None:
        """Ask it to end, wait, and kill it if it does not. Safe to call twice."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self) -> float:
        """Stop and start it over the same store."""
        self.stop()
        return self.start()

    def _environment(self) -> dict[str, str]:
        # Nothing of the caller's own service settings: the demo must be the same everywhere.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CONDUIT_")}
        own = {
            "host": HOST,
            "port": str(self._port),
            "demo": "true",
            "allowed_private_hosts": f"{HOST}:{self._port}",
            "store_path": str(self._folder / "store"),
            "log_format": "text",
            "drain_timeout": "2",
            **self._settings,
        }
        ours = {f"CONDUIT_{name.upper()}": value for name, value in own.items()}
        return {**inherited, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **ours}

    def _wait_until_ready(self, deadline: float) -> None:
        assert self._process is not None
        with httpx.Client(base_url=self.url, timeout=2, trust_env=False) as client:
            while not _is_ready(client):
                if self._process.poll() is not None:
                    raise ServiceDidNotStart(f"the service ended while starting:\n{self._last_words()}")
                if time.monotonic() > deadline:
                    raise ServiceDidNotStart(f"the service was not ready in time:\n{self._last_words()}")
                time.sleep(POLL_SECONDS)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-8:])


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
