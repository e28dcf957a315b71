"""Promise 6: however a request ends, it ends once, alone, and its memory is back."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from engine.messages import Accepted, CacheOptions, Event, Failed, Finished, Sampling, TextDelta
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import WAIT, Client, ask, drain


def test_promise_6_a_failure_inside_ends_its_request_only(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            runtime.family, "encode", lambda pixels: (_ for _ in ()).throw(RuntimeError("0xdeadbeef"))
        )
        *_, last = client.run(ask("broken"))
    assert isinstance(last, Failed) and last.code == "internal_error" and "0x" not in last.message
    assert "0xdeadbeef" in caplog.text
    assert isinstance(client.run(ask("next"))[-1], Finished)


@pytest.mark.parametrize(
    "place", ["engine.serving.generation.Prefill.reuse", "engine.serving.generation.Prefill.full"]
)
def test_a_failure_in_the_refresh_pass_gives_everything_back(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    policy = "full" if place.endswith("full") else "conduit"
    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        *_, last = client.run(ask("broken", cache=CacheOptions(policy=policy)))
    assert isinstance(last, Failed) and last.code == "internal_error"
    assert runtime.pool.taken == 0 and runtime.store.admin.stats().leases == 0


def test_one_request_without_room_does_not_end_its_neighbours(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runtime.pool, "grow", no_memory)
    big = client.start(ask("big", sampling=Sampling(max_tokens=600)))
    small = client.start(ask("small", sampling=Sampling(max_tokens=300)))
    ends = {type(drain(events)[-1]) for events in (small, big)}
    assert ends == {Finished, Failed}


def test_f3_abort_ends_a_running_request_within_a_step(client: Client, runtime: Runtime) -> None:
    events = client.start(ask("long", sampling=Sampling(max_tokens=3000)))
    while not isinstance(events.get(timeout=WAIT), TextDelta):
        pass
    client.worker.abort("long")
    *_, last = drain(events)
    assert isinstance(last, Failed) and last.code == "aborted"
    assert runtime.pool.taken == 0 and runtime.store.admin.stats().leases == 0


def test_abort_of_a_waiting_or_unknown_request(client: Client) -> None:
    client.worker.abort("nobody")
    running = [client.start(ask(f"r{i}", sampling=Sampling(max_tokens=400))) for i in range(2)]
    waiting = client.start(ask("w"))
    assert isinstance(waiting.get(timeout=WAIT), Accepted)
    client.worker.abort("w")
    assert isinstance(drain(waiting)[-1], Failed)
    assert all(isinstance(drain(events)[-1], Finished) for events in running)


def test_f15_a_full_queue_is_an_error_at_once(runtime: Runtime) -> None:
    worker = Worker(runtime, Limits(waiting=2, running=1))
    client = Client(worker)
    streams = [client.start(ask(f"q{i}")) for i in range(5)]  # before the thread runs: all arrive together
    worker.start()
    ends = [drain(events)[-1] for events in streams]
    refused = [end for end in ends if isinstance(end, Failed)]
    # Two are turned away at the door; a third where it arrives before the first has left the queue.
    assert {end.code for end in refused} == {"queue_full"} and len(refused) in (2, 3)
    assert sum(isinstance(end, Finished) for end in ends) == 5 - len(refused)
    worker.stop(WAIT)


def test_stop_ends_everybody_and_refuses_newcomers(runtime: Runtime) -> None:
    worker = Worker(runtime, Limits(running=1))
    worker.start()
    client = Client(worker)
    running = client.start(ask("r", sampling=Sampling(max_tokens=3000)))
    assert isinstance(running.get(timeout=WAIT), Accepted)
    stopper = threading.Thread(target=worker.stop, args=(0,))
    stopper.start()
    assert drain(running)[-1] == Failed("r", "engine_stopped", "the service is stopping")
    stopper.join()
    assert not worker.status().ready


def test_draining_lets_running_requests_finish(runtime: Runtime) -> None:
    worker = Worker(runtime)
    worker.start()
    events = Client(worker).start(ask("r"))
    worker.stop(WAIT)
    assert isinstance(drain(events)[-1], Finished)


def test_a_submit_after_the_end_still_ends(runtime: Runtime) -> None:
    worker = Worker(runtime)
    worker.start()
    worker.stop(0)
    assert Client(worker).run(ask("late")) == [Failed("late", "engine_stopped", "the service is stopping")]


def test_a_listener_that_fails_does_not_take_the_worker_with_it(client: Client) -> None:
    def broken(happened: Sequence[Event]) -> None:
        raise RuntimeError("nobody listens")

    client.worker.submit(ask("deaf"), broken)
    assert isinstance(client.run(ask("next"))[-1], Finished)
    assert client.worker.status().ready


def test_a_second_request_of_the_same_name_is_refused(client: Client) -> None:
    first = client.start(ask("same", sampling=Sampling(max_tokens=300)))
    (refused,) = client.run(ask("same"))
    assert isinstance(refused, Failed)
    assert isinstance(drain(first)[-1], Finished)


@pytest.mark.parametrize("busy", [True, False], ids=["waiting", "decoding"])
def test_a_request_that_runs_into_its_time_limit_ends(runtime: Runtime, busy: bool) -> None:
    worker = Worker(runtime, Limits(running=1))
    worker.start()
    client = Client(worker)
    other = client.start(ask("other", sampling=Sampling(max_tokens=3000))) if busy else None
    *_, last = client.run(ask("late", sampling=Sampling(max_tokens=3000), timeout_seconds=0.3))
    assert isinstance(last, Failed) and last.code == "request_timeout"
    if other is not None:
        worker.abort("other")
        drain(other)
    worker.stop(0)
    assert runtime.pool.taken == 0
