"""The thread that writes."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from store.errors import TierUnavailable
from store.tiers.serial import SerialThread
from tests.store.stand import in_threads


def nothing() -> None:
    """A chore."""


def test_work_runs_in_turn_on_one_thread() -> None:
    serial = SerialThread("t", nothing, 60.0)
    inside: list[int] = []
    most: list[int] = []

    def work() -> int:
        inside.append(1)
        most.append(len(inside))
        inside.pop()
        return threading.get_ident()

    idents = in_threads(8, lambda _: [serial.run(work) for _ in range(20)])
    assert len({ident for many in idents for ident in many}) == 1
    assert max(most) == 1
    serial.close()


def test_what_work_raises_is_the_callers() -> None:
    serial = SerialThread("t", nothing, 60.0)

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        serial.run(fail)
    assert serial.run(lambda: 5) == 5
    serial.close()


def test_work_may_ask_for_work() -> None:
    serial = SerialThread("t", nothing, 60.0)
    assert serial.run(lambda: serial.run(lambda: 7)) == 7
    serial.close()


def test_nothing_hangs_at_the_end() -> None:
    for _ in range(20):
        serial = SerialThread("t", nothing, 60.0)
        serial.run(nothing)

        def use(number: int, serial: SerialThread = serial) -> int:
            if number == 0:
                serial.close()
            return sum(serial.run(lambda: 1) for _ in range(10))

        assert in_threads(4, use) == [10] * 4
        assert "t" not in [thread.name for thread in threading.enumerate()]


def test_the_chore_goes_on_though_it_fails() -> None:
    done = threading.Semaphore(0)

    def chore() -> None:
        done.release()
        raise RuntimeError("once more")

    serial = SerialThread("t", chore, 0.01)
    serial.start()
    assert all(done.acquire(timeout=30) for _ in range(3))
    serial.close()


def test_posted_work_is_not_waited_for_and_runs_in_its_turn() -> None:
    serial = SerialThread("t", nothing, 60.0)
    gate = threading.Event()
    done: list[int] = []
    assert serial.post(gate.wait)
    for number in range(3):
        assert serial.post(lambda number=number: done.append(number))
    assert done == []
    gate.set()
    assert serial.run(lambda: list(done)) == [0, 1, 2]
    serial.close()
    assert not serial.post(nothing)


def test_what_posted_work_raises_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    serial = SerialThread("thread of the test", nothing, 60.0)

    def fail() -> None:
        raise KeyError("a posted one")

    with caplog.at_level(logging.ERROR):
        serial.post(fail)
        assert serial.run(lambda: 5) == 5
    assert "thread of the test" in caplog.text and "a posted one" in caplog.text
    serial.close()


def test_the_chore_has_its_turn_under_steady_work() -> None:
    """Work that never ends must not put it off for ever."""
    chores = threading.Semaphore(0)
    serial = SerialThread("t", lambda: chores.release(), 0.005)
    pause = threading.Event()
    for _ in range(200):
        serial.run(lambda: pause.wait(0.001))
    serial.close()
    assert chores.acquire(timeout=0) and chores.acquire(timeout=0)


def test_no_thread_to_be_had_is_the_tiers_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    serial = SerialThread("t", nothing, 60.0)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    for call in (lambda: serial.run(nothing), lambda: serial.post(nothing)):
        with pytest.raises(TierUnavailable, match="no_thread"):
            call()
    serial.start()
    monkeypatch.undo()
    assert serial.run(threading.get_ident) != threading.get_ident()
    serial.close()


def test_closing_waits_no_longer_than_it_is_told() -> None:
    serial = SerialThread("t", nothing, 60.0)
    gate, ended = threading.Event(), threading.Event()

    def hang() -> None:
        gate.wait()
        ended.set()

    serial.post(hang)
    serial.close(0.01)
    assert not ended.is_set()
    gate.set()
    assert ended.wait(30)


def test_closing_finishes_what_is_queued() -> None:
    serial = SerialThread("t", nothing, 60.0)
    done: list[int] = []
    for number in range(50):
        serial.post(lambda number=number: done.append(number))
    serial.close()
    assert done == list(range(50))
    assert serial.run(threading.get_ident) == threading.get_ident()
    serial.start()
    serial.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    serial = SerialThread("t", nothing, 60.0)
    assert serial.run(os.getpid) == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if serial.run(os.getpid) == os.getpid() and serial.run(lambda: 7) == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    serial.close()
