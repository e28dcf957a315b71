"""The way in: time, places and order are counted from the door on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from engine.messages import Accepted, Event, Failed, Finished, Sampling
from engine.serving.prepared import DEFAULT_MAX_TOKENS, answer_budget
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import WAIT, Client, ask, drain
from tests.engine.conftest import user

TEXT = (user("K"),)


@pytest.fixture
def worker(runtime: Runtime) -> Iterator[Worker]:
    """Not started yet."""
    worker = Worker(runtime, Limits(waiting=3, running=1))
    yield worker
    worker.stop(0)


class SlowLayout:
    """Laying out waits for `free`."""

    def __init__(self, runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
        self._layout = runtime.prompt.layout
        self.begun = threading.Semaphore(0)
        self.free = threading.Event()
        patch.setattr(runtime.prompt, "layout", self._slowly)

    def _slowly(self, *asked: object) -> object:
        self.begun.release()
        assert self.free.wait(WAIT)
        return self._layout(*asked)  # type: ignore[arg-type]


def test_a_request_s_time_runs_while_it_is_laid_out(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowLayout(runtime, monkeypatch)
    events = client.start(ask("late", TEXT, 0, timeout_seconds=0.1))
    time.sleep(0.2)
    slow.free.set()
    last = drain(events)[-1]
    assert isinstance(last, Failed) and last.code == "request_timeout"


def test_a_request_aborted_while_it_is_laid_out_is_never_accepted(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowLayout(runtime, monkeypatch)
    events = client.start(ask("gone", TEXT, 0))
    assert slow.begun.acquire(timeout=WAIT)
    client.worker.abort("gone")
    slow.free.set()
    assert drain(events) == [Failed("gone", "aborted", "the client went away")]
    assert isinstance(client.run(ask("gone", TEXT, 0))[-1], Finished), "its name may be used again"


def test_those_on_the_way_in_take_places(
    worker: Worker, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, client = SlowLayout(runtime, monkeypatch), Client(worker)
    streams = [client.start(ask(f"r{number}", TEXT, 0)) for number in range(4)]
    (refused,) = client.run(ask("one too many", TEXT, 0))
    assert isinstance(refused, Failed) and refused.code == "queue_full"
    (again,) = client.run(ask("r0", TEXT, 0))
    assert isinstance(again, Failed) and "already" in again.message
    slow.free.set()
    worker.start()
    assert all(isinstance(drain(events)[-1], Finished | Failed) for events in streams)


def test_no_memory_for_a_thread_is_one_error_and_takes_no_place(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(client.worker._entrance._preparing, "submit", no_thread)
        for number in range(20):
            (refused,) = client.run(ask(f"r{number}", TEXT, 0))
            assert isinstance(refused, Failed) and refused.code == "internal_error"
    assert isinstance(client.run(ask("r0", TEXT, 0))[-1], Finished)


def test_text_beyond_every_context_is_refused_before_it_is_tokenised(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was laid out")

    monkeypatch.setattr(runtime.prompt, "layout", never)
    (refused,) = client.run(ask("long", (user("word " * 10**6),), 0))
    assert isinstance(refused, Failed) and refused.code == "context_length_exceeded"


def test_an_answer_has_a_length_where_nobody_says_one() -> None:
    assert answer_budget(10, None, 10**6) == DEFAULT_MAX_TOKENS
    assert answer_budget(10, 5000, 10**6) == 5000
    assert answer_budget(10, None, 30) == 20


def served(worker: Worker, requests: dict[str, dict[str, object]]) -> list[str]:
    """Names in the order in which the requests end; they have all arrived when the first begins."""
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()

    def note(happened: Sequence[Event]) -> None:
        for event in happened:
            if isinstance(event, Finished | Failed):
                ends.put(event.request_id)

    for name, changes in requests.items():
        arrived = worker._entrance._inbox.qsize()
        worker.submit(ask(name, TEXT, 0, **changes), note)
        while worker._entrance._inbox.qsize() == arrived:  # being laid out
            time.sleep(0.001)
    worker.start()
    return [ends.get(timeout=WAIT) for _ in requests]


def test_accounts_of_one_tenant_take_turns_and_priority_goes_first(runtime: Runtime) -> None:
    worker = Worker(runtime, Limits(waiting=9, running=1))
    order = served(
        worker,
        {
            "x1": {"account": "x"},
            "x2": {"account": "x"},
            "x3": {"account": "x"},
            "y1": {"account": "y"},
            "first": {"account": "x", "priority": -1},
        },
    )
    worker.stop(0)
    assert order == ["first", "y1", "x1", "x2", "x3"]


def test_bytes_of_kv_are_those_of_prompt_and_answer_in_all_layers(runtime: Runtime) -> None:
    worker = Worker(runtime, Limits(bytes=600 * runtime.pool.slot_bytes))
    worker.start()
    client = Client(worker)
    fits = client.run(ask("fits", TEXT, 0, sampling=Sampling(max_tokens=500)))
    assert isinstance(fits[0], Accepted)
    prompt = fits[0].prompt_tokens
    (refused,) = client.run(ask("large", TEXT, 0, sampling=Sampling(max_tokens=601 - prompt)))
    assert isinstance(refused, Failed) and refused.code == "kv_too_large" and "601 tokens" in refused.message
    just = client.start(ask("just", TEXT, 0, sampling=Sampling(max_tokens=600 - prompt)))
    assert isinstance(just.get(timeout=WAIT), Accepted)
    worker.stop(0)
