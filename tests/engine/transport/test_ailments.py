"""When a worker must be replaced, and what a wait for one that loads ends with."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from engine.errors import EngineStopped
from engine.messages import WORKER_DOWN, EngineStatus
from engine.transport import worker_process
from engine.transport.child import serve_parent
from engine.transport.process import ProcessClient
from engine.transport.worker_process import WorkerProcess
from tests.engine.transport.stand import LAUNCH, StandIn, over_the_pipe

STALL = 10.0
IDLE = EngineStatus(True, (), 0.0, 0, 0)


@dataclass
class Program:
    """A process that has ended with `returncode`, or has not."""

    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


def ailment(status: EngineStatus | None, silent: float = 0.0, returncode: int | None = None) -> str | None:
    worker = object.__new__(WorkerProcess)
    worker.process = cast(Any, Program(returncode))
    worker.status, worker.heard = status, time.monotonic() - silent
    return worker.ailment(STALL)


@pytest.mark.parametrize(
    ("status", "silent", "expected"),
    [
        (IDLE, 0.0, None),
        (IDLE, 11.0, "the worker is stalled"),
        (EngineStatus(True, (), 99.0, 0, 0), 1.0, None),
        (EngineStatus(True, (), 99.0, 1, 0), 0.0, "the worker is stalled"),
        (EngineStatus(True, (), 99.0, 0, 1), 0.0, "the worker is stalled"),
        (EngineStatus(True, (), 6.0, 0, 1), 6.0, "the worker is stalled"),
        (EngineStatus(True, (), 6.0, 1, 1), 1.0, None),
        (EngineStatus(False, (WORKER_DOWN,), 0.0, 0, 0), 0.0, WORKER_DOWN),
        (None, 5.0, None),
        (None, 11.0, "the worker never came up"),
    ],
)
def test_who_is_silent_or_has_work_and_makes_no_progress_is_replaced(
    status: EngineStatus | None, silent: float, expected: str | None
) -> None:
    assert ailment(status, silent) == expected


def test_who_has_ended_is_replaced_whatever_it_said_last() -> None:
    assert ailment(IDLE, returncode=-9) == "the worker ended with status -9"


@pytest.mark.parametrize(
    ("returncode", "closing", "said"), [(3, False, "ended with status 3"), (None, True, "is stopping")]
)
def test_a_worker_that_ended_and_a_service_that_closes_wait_for_no_model(
    monkeypatch: pytest.MonkeyPatch, returncode: int | None, closing: bool, said: str
) -> None:
    monkeypatch.setattr("engine.transport.process.CHECK_SECONDS", 0.01)
    client = ProcessClient(["worker"], LAUNCH, stall_after=5, load_timeout=30, picture_bytes=0)
    worker = object.__new__(WorkerProcess)
    worker.process, worker.started = cast(Any, Program(returncode)), Future()
    if closing:
        client._closing.set()
    with pytest.raises(EngineStopped, match=said):
        client._wait_until_loaded(worker)
    client._spare.close()


def test_a_killed_process_that_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may wait for a device."""

    def late(timeout: float | None = None) -> int:
        assert timeout == worker_process.KILL_SECONDS
        raise subprocess.TimeoutExpired("worker", timeout)

    with over_the_pipe(StandIn(), monkeypatch) as client:
        client._closing.set()
        client._supervisor.join()
        worker, client._worker = client._worker, None
        assert worker is not None
        monkeypatch.setattr(worker.process, "wait", late)
        worker.kill()
    assert "does not end" in caplog.text


def test_signals_to_the_whole_group_are_left_to_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, and what a service manager sends."""
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(one) for one in both]
    heeded: list[Any] = []

    class Served:
        def __init__(self, pipe: Connection) -> None:
            self._pipe = pipe

        def run(self) -> int:
            heeded.extend(signal.getsignal(one) for one in both)
            return 7

    monkeypatch.setattr("engine.transport.child.Child", Served)
    ours, theirs = Pipe()
    try:
        assert serve_parent(os.dup(theirs.fileno())) == 7
    finally:
        for one, handler in zip(both, before, strict=True):
            signal.signal(one, handler)
        ours.close()
        theirs.close()
    assert heeded == [signal.SIG_IGN, signal.SIG_IGN]
