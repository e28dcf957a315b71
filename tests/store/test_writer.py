"""The queue of what is written behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from store.writer import Job, WriteBehind
from tests.service.serving import eventually
from tests.store.stand import in_threads


class Writer:
    """A queue whose jobs wait for `gate` and say what they wrote."""

    def __init__(self, budget: int = 100) -> None:
        self.chores = 0
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.written: list[str] = []
        self.queue: WriteBehind[str] = WriteBehind(budget, self._chore)

    def _chore(self) -> None:
        self.chores += 1

    def offer(self, digest: bytes, slot: str | None, nbytes: int = 10) -> bool:
        def run() -> None:
            self.begun.release()
            assert self.gate.wait(30)
            self.written.append(slot or "")

        return self.queue.offer(Job(digest, nbytes, run, slot))


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.gate.set()
    writer.queue.close(30)


def test_what_is_offered_is_written_in_order(writer: Writer) -> None:
    assert all(writer.offer(bytes([number]), str(number)) for number in range(9))
    assert writer.queue.depth == (9, 90)
    assert writer.written == []
    writer.gate.set()
    assert writer.queue.flush(30)
    assert writer.written == [str(number) for number in range(9)]
    assert writer.queue.depth == (0, 0)


def test_the_bytes_that_wait_are_bounded_and_one_job_always_fits(writer: Writer) -> None:
    assert writer.offer(b"a", "large", nbytes=1000)
    assert not writer.offer(b"b", "more", nbytes=1)
    writer.gate.set()
    assert writer.queue.flush(30)
    assert writer.offer(b"b", "exactly", nbytes=60) and writer.offer(b"c", "full", nbytes=40)
    assert writer.queue.flush(30)
    assert writer.written == ["large", "exactly", "full"]


def test_a_full_queue_is_full_to_the_byte(writer: Writer) -> None:
    assert writer.offer(b"a", "a", nbytes=60)
    assert not writer.offer(b"b", "b", nbytes=41)
    assert writer.offer(b"b", "b", nbytes=40)
    assert not writer.offer(b"c", "c", nbytes=1)
    assert writer.offer(b"c", None, nbytes=0)


def test_what_waits_can_be_read_the_newest_first(writer: Writer) -> None:
    writer.offer(b"a", "old")
    assert writer.begun.acquire(timeout=30)
    assert writer.queue.pending(b"a") == "old"
    writer.offer(b"b", "other")
    writer.offer(b"a", "new")
    writer.offer(b"a", None)
    assert writer.queue.pending(b"a") == "new" and writer.queue.pending(b"c") is None
    assert writer.queue.all_pending() == ["new", "other"]
    writer.gate.set()
    assert writer.queue.flush(30)
    assert writer.queue.pending(b"a") is None and writer.queue.all_pending() == []


def test_cancelling_drops_what_waits_and_waits_for_what_runs(writer: Writer) -> None:
    writer.offer(b"a", "running")
    assert writer.begun.acquire(timeout=30)
    writer.offer(b"a", "waiting")
    writer.offer(b"b", "other")
    found: list[bool] = []
    cancelling = threading.Thread(target=lambda: found.append(writer.queue.cancel(b"a")))
    cancelling.start()
    eventually(lambda: writer.queue.depth == (2, 20), "what waits is dropped")
    assert found == [] and cancelling.is_alive()
    writer.gate.set()
    cancelling.join(30)
    assert found == [True]
    assert writer.queue.flush(30)
    assert writer.written == ["running", "other"]


def test_cancelling_says_whether_something_was_to_be_written(writer: Writer) -> None:
    writer.offer(b"z", "first")
    writer.offer(b"a", None)
    writer.offer(b"b", "b")
    assert [writer.queue.cancel(digest) for digest in (b"a", b"b", b"c")] == [False, True, False]
    writer.gate.set()
    assert writer.queue.flush(30)
    assert writer.written == ["first"]


def test_flush_tells_whether_time_sufficed(writer: Writer) -> None:
    writer.offer(b"a", "a")
    assert not writer.queue.flush(0.01)
    writer.gate.set()
    assert writer.queue.flush(None)


def test_closing_takes_no_more_and_drops_what_is_not_written_in_time(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        writer.offer(bytes([number]), str(number))
    assert writer.begun.acquire(timeout=30)
    with caplog.at_level(logging.WARNING):
        writer.queue.close(0.01)
    assert "2 queued records were not written" in caplog.text
    assert not writer.offer(b"x", "late")
    writer.gate.set()
    assert writer.queue.flush(30)
    assert writer.written == ["0"]


def test_a_job_that_raises_gives_its_bytes_back(writer: Writer) -> None:
    def fail() -> None:
        raise KeyError("once")

    assert writer.queue.offer(Job(b"a", 90, fail, "a"))
    writer.gate.set()
    assert writer.queue.flush(30)
    assert writer.queue.depth == (0, 0)
    assert writer.offer(b"b", "b", nbytes=100) and writer.queue.flush(30)
    assert writer.written == ["b"]


def test_no_thread_to_be_had_is_a_full_queue(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert not writer.offer(b"a", "a")
    assert writer.queue.depth == (0, 0) and writer.queue.pending(b"a") is None
    monkeypatch.undo()
    writer.gate.set()
    assert writer.offer(b"a", "a") and writer.queue.flush(30)


def test_the_chore_is_done_without_anything_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.writer._CHORE_SECONDS", 0.01)
    writer = Writer()
    assert writer.chores == 0
    writer.queue.start()
    eventually(lambda: writer.chores >= 2, "the chore is done again and again")
    writer.queue.close(30)


def test_offering_from_many_threads_loses_nothing(writer: Writer) -> None:
    writer.gate.set()
    taken: list[bool] = []

    def work(mine: int) -> None:
        for turn in range(50):
            taken.append(writer.offer(bytes([mine, turn]), f"{mine}.{turn}", nbytes=0))
            if turn % 5 == 0:
                writer.queue.cancel(bytes([mine, turn + 200 & 255]))

    assert in_threads(4, work) == [None] * 4
    assert writer.queue.flush(30)
    assert all(taken) and len(set(writer.written)) == 200


def test_the_thread_has_a_name_to_be_found_by(writer: Writer) -> None:
    writer.gate.set()
    names: list[str] = []
    writer.queue.offer(Job(b"a", 0, lambda: names.append(threading.current_thread().name)))
    assert writer.queue.flush(30) and names == ["store-write-behind"]
