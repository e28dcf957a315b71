"""A worker without a model behind either transport: what it is told to fail in, it fails in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from engine.chains.tree import Chains
from engine.client import EngineClient
from engine.messages import EngineInfo, EngineStatus, Event, GenerateRequest
from engine.serving.admin import AdminDesk
from engine.settings import Limits, ModelSettings
from engine.transport.child import Child
from engine.transport.inprocess import InProcessClient
from engine.transport.process import ProcessClient
from engine.transport.wire import Launch
from store.settings import StoreSettings
from store.types import VerifyProgress

INFO = EngineInfo("m", 4096, ("conduit",), "conduit", 0.1, "cpu", "float32")
READY = EngineStatus(True, (), 0.0, 0, 0)
LAUNCH = Launch(ModelSettings("m"), StoreSettings(), Limits())
Emit = Callable[[Sequence[Event]], None]


def request(name: str = "r", **changes: Any) -> GenerateRequest:
    return GenerateRequest(name, "tenant", (), (), **changes)


@dataclass
class StandIn:
    """Worker and store in one. `fault` is raised by every call on the store, `answer` is what they return."""

    fault: BaseException | None = None
    answer: Any = None
    reports: tuple[VerifyProgress, ...] = ()
    status_now: EngineStatus = READY
    submitted: dict[str, Emit] = field(default_factory=dict)
    requests: list[GenerateRequest] = field(default_factory=list)
    hurried: int = 0
    aborted: list[str] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    blocked: threading.Event = field(default_factory=threading.Event)
    blocks: bool = False
    called: int = 0
    silent: bool = False

    def submit(self, request: GenerateRequest, emit: Emit) -> None:
        self.submitted[request.id] = emit
        self.requests.append(replace(request, images=()))
        self.entered.release()

    def abort(self, request: str) -> None:
        self.aborted.append(request)

    def status(self) -> EngineStatus:
        if self.silent:
            self.blocked.wait(30)
        return self.status_now

    def stop(self, drain_seconds: float) -> None:
        self.stopped.append(drain_seconds)

    def hurry(self) -> None:
        self.hurried += 1

    def verify(self) -> Iterator[VerifyProgress]:
        yield from self.reports
        self._called()

    def close(self) -> None:
        self._called()

    def __getattr__(self, name: str) -> Any:
        if name in AdminDesk.CALLS:
            return lambda *_: self._called()
        raise AttributeError(name)

    def _called(self) -> Any:
        self.called += 1
        if self.blocks:
            self.blocked.wait(30)
        if self.fault is not None:
            raise self.fault
        return self.answer

    @property
    def desk(self) -> AdminDesk:
        return AdminDesk(self, lambda *_: "0" * 64, Chains(0))


class ThreadedProcess:
    """In the place of `subprocess.Popen`: the worker's end of the pipe on a thread of this process."""

    pid = 0

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int]) -> None:
        self.returncode: int | None = None
        self._pipe = Connection(os.dup(pass_fds[0]))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None:
            self._thread.join(timeout)
        return self.returncode

    def kill(self) -> None:
        """It ends with the pipe, at which it is always waiting."""
        from engine.transport.worker_process import _hang_up

        if self.returncode is None:
            self.returncode = -9
            _hang_up(self._pipe)

    def _run(self) -> None:
        code = Child(self._pipe).run()
        if self.returncode is None:
            self.returncode = code
        self._pipe.close()


@contextmanager
def in_process(stand_in: StandIn, _: pytest.MonkeyPatch, **__: int) -> Iterator[EngineClient]:
    yield InProcessClient(stand_in, stand_in, stand_in.desk, INFO)


@contextmanager
def over_the_pipe(
    stand_in: StandIn, patch: pytest.MonkeyPatch, picture_bytes: int = 1 << 20
) -> Iterator[ProcessClient]:
    """The supervised client, quick, over the thread that stands for a process."""
    patch.setattr("engine.transport.worker_process.subprocess.Popen", ThreadedProcess)
    patch.setattr("engine.transport.process.CHECK_SECONDS", 0.01)
    patch.setattr("engine.transport.child.HEARTBEAT_SECONDS", 0.01)
    started = SimpleNamespace(
        worker=stand_in, desk=stand_in.desk, info=INFO, store=SimpleNamespace(entries=stand_in)
    )
    patch.setattr("engine.transport.child.start_worker", lambda *_: started)
    client = ProcessClient(["worker"], LAUNCH, stall_after=5, load_timeout=30, picture_bytes=picture_bytes)
    client.start()
    try:
        yield client
    finally:
        stand_in.blocked.set()
        client._close(0)


TRANSPORTS = {"thread": in_process, "pipe": over_the_pipe}
