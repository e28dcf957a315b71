"""The thread that writes."""

from __future__ import annotations

import threading

import pytest

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
