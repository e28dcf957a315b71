"""The worker with a real store: every request ends once, memory comes back, the cache changes no answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ContextLengthExceeded
from engine.messages import (
    Accepted,
    CacheOptions,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    ImageInput,
    Message,
    Sampling,
    TextDelta,
)
from engine.policies.known import make_policy
from engine.serving.generation import answer_budget
from engine.serving.load import load_runtime
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Defaults, Limits, ModelSettings
from store.open import open_store
from store.records.keys import pixel_digest
from store.settings import StoreSettings
from store.types import EntryFilter
from tests.engine.conftest import PICTURES, said, user

WAIT = 60


def image(pixels: np.ndarray) -> ImageInput:
    height, width, _ = pixels.shape
    data = pixels.tobytes()
    return ImageInput(pixel_digest(width, height, data), width, height, data)


IMAGES = tuple(image(picture) for picture in PICTURES)
QUESTION = (user(0, 1, "What is K on the red page?"),)


def ask(
    name: str, messages: tuple[Message, ...] = QUESTION, images: int = 2, **changes: object
) -> GenerateRequest:
    request = GenerateRequest(name, "tenant", messages, IMAGES[:images], Sampling(max_tokens=6))
    return replace(request, **changes)  # type: ignore[arg-type]


class Client:
    """Collects the events of each request."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def start(self, request: GenerateRequest) -> queue.Queue[Event]:
        events: queue.Queue[Event] = queue.Queue()
        self.worker.submit(request, lambda happened: [events.put(event) for event in happened])
        return events

    def run(self, request: GenerateRequest) -> list[Event]:
        return drain(self.start(request))

    def answer(self, request: GenerateRequest) -> tuple[str, Finished]:
        *events, last = self.run(request)
        assert isinstance(last, Finished), last
        return "".join(event.text for event in events if isinstance(event, TextDelta)), last


def drain(events: queue.Queue[Event]) -> list[Event]:
    seen: list[Event] = []
    while not seen or not isinstance(seen[-1], Finished | Failed):
        seen.append(events.get(timeout=WAIT))
    return seen


def open_runtime(model: Path, folder: Path | None) -> Runtime:
    store = StoreSettings(path=folder, memory_bytes=1 << 24, disk_bytes=1 << 26, decoded_bytes=1 << 24)
    return load_runtime(ModelSettings(str(model), device="cpu"), open_store(store), "raw")


@pytest.fixture
def runtime(tiny_path: Path, tmp_path: Path) -> Iterator[Runtime]:
    runtime = open_runtime(tiny_path, tmp_path / "store")
    yield runtime
    runtime.store.entries.close()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    worker = Worker(runtime, Limits(waiting=8, running=2))
    worker.start()
    yield Client(worker)
    worker.stop(0)
    assert runtime.pool.taken == 0
    assert runtime.store.admin.stats().leases == 0


def test_events_come_in_order_and_end_once(client: Client) -> None:
    first, *middle, last = client.run(ask("a"))
    assert isinstance(first, Accepted) and first.image_tokens == 49
    assert all(isinstance(event, TextDelta) for event in middle)
    assert isinstance(last, Finished) and last.reason == "length"
    assert last.usage.completion_tokens == 6 and last.usage.prompt_tokens == first.prompt_tokens


def test_promise_2_the_cache_never_changes_an_answer(client: Client, tiny_path: Path, tmp_path: Path) -> None:
    """Cold, from the decoded cache, from disk in another process' place, and without any store: the same tokens."""
    shifted = (said("system", "Slowly."), user(0, 1, "What is K?"))
    cold, cold_end = client.answer(ask("cold", shifted))
    warm, warm_end = client.answer(ask("warm", shifted))
    bypass, bypass_end = client.answer(ask("bypass", shifted, cache=CacheOptions(mode="bypass")))
    assert [i.outcome for i in cold_end.report.images] == ["miss", "miss"]
    assert [i.tier for i in warm_end.report.images] == ["decoded", "decoded"]
    assert [i.outcome for i in bypass_end.report.images] == ["bypass", "bypass"]
    client.worker.runtime.store.entries.flush(WAIT)
    client.worker.runtime.store.entries.close()
    again = open_runtime(tiny_path, tmp_path / "store")
    worker = Worker(again)
    worker.start()
    disk, disk_end = Client(worker).answer(ask("disk", shifted))
    worker.stop(0)
    again.store.entries.close()
    assert [i.tier for i in disk_end.report.images] == ["lmdb", "lmdb"]
    assert cold == warm == bypass == disk
    refreshed = {
        tuple(i.refreshed for i in end.report.images) for end in (cold_end, warm_end, bypass_end, disk_end)
    }
    assert len(refreshed) == 1


def test_report_and_usage_add_up(client: Client) -> None:
    client.answer(ask("first", images=1, messages=(user(0, "K"),)))
    _, end = client.answer(ask("second", (said("system", "x"), user(0, 1, "K?"))))
    report, usage = end.report, end.usage
    assert [i.outcome for i in report.images] == ["hit", "miss"]
    assert report.visual_tokens == report.reused + report.refreshed == 49
    assert report.refreshed == sum(i.refreshed for i in report.images) == 5
    assert usage.cached_tokens == report.images[0].tokens - report.images[0].refreshed
    assert usage.cache_write_tokens == report.images[1].tokens
    assert usage.image_tokens == 49
    assert 0 <= end.timings.queue <= end.timings.first_token <= end.timings.total


def test_policy_full_touches_no_entry(client: Client, runtime: Runtime) -> None:
    _, end = client.answer(ask("full", cache=CacheOptions(policy="full")))
    assert [i.outcome for i in end.report.images] == ["bypass", "bypass"]
    assert end.report.refreshed == end.report.visual_tokens and end.usage.cached_tokens == 0
    assert runtime.store.admin.stats().compiles == 0


def test_the_same_image_twice_is_compiled_once(client: Client, runtime: Runtime) -> None:
    twice = GenerateRequest("t", "tenant", QUESTION, (IMAGES[0], IMAGES[0]), Sampling(max_tokens=1))
    _, end = client.answer(twice)
    assert runtime.store.admin.stats().compiles == 1
    assert end.usage.cache_write_tokens == IMAGES[0].width * IMAGES[0].height // 28**2
    assert len({i.key for i in end.report.images}) == 1


def test_c1_equal_placeholders_do_not_make_equal_images(client: Client) -> None:
    """Images of one size and one question: each is a miss of its own, and each has its own answer state."""
    ends = []
    for index, level in enumerate((0, 128, 255)):
        square = image(np.full((112, 112, 3), level, np.uint8))
        request = GenerateRequest(
            f"c{index}", "tenant", (user(0, "colour?"),), (square,), Sampling(max_tokens=1)
        )
        ends.append(client.answer(request)[1])
    assert [end.usage.cached_tokens for end in ends] == [0, 0, 0]
    assert len({end.report.images[0].key for end in ends}) == 3


def test_d6_another_tenant_does_not_hit(client: Client) -> None:
    client.answer(ask("a"))
    _, end = client.answer(ask("b", tenant="other"))
    assert [i.outcome for i in end.report.images] == ["miss", "miss"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"messages": (said("system", "x"),), "images": ()}, "invalid_prompt"),
        ({"cache": CacheOptions(policy="best")}, "unknown_policy"),
        ({"cache": CacheOptions(policy="conduit", options={"speed": 11})}, "unknown_policy"),
        ({"cache": CacheOptions(refresh_ratio=1.5)}, "invalid_refresh_ratio"),
        ({"cache": CacheOptions(policy="conduit", options={"score_layers": "0,99"})}, "unknown_policy"),
        ({"sampling": Sampling(logit_bias=((10**6, 1.0),))}, "invalid_sampling"),
        ({"sampling": Sampling(max_tokens=5000)}, "context_length_exceeded"),
    ],
)
def test_bad_requests_fail_before_acceptance_and_disturb_nothing(
    client: Client, changes: dict[str, object], code: str
) -> None:
    (event,) = client.run(replace(ask("bad"), **changes))  # type: ignore[arg-type]
    assert isinstance(event, Failed) and event.code == code and event.message
    assert isinstance(client.run(ask("good"))[-1], Finished)


def test_a_pinned_image_outlives_eviction(client: Client, runtime: Runtime) -> None:
    client.answer(ask("pinned", (user(0, "K"),), 1, cache=CacheOptions(pin_seconds=600)))
    other = GenerateRequest("plain", "tenant", (user(0, "K"),), (IMAGES[1],), Sampling(max_tokens=1))
    client.answer(other)
    runtime.store.entries.flush(WAIT)
    evicted = runtime.store.admin.evict(EntryFilter())
    assert len(evicted.keys) == 1 and evicted.skipped_pinned == 1
    _, end = client.answer(ask("again", (user(0, "K"),), 1))
    assert end.report.images[0].outcome == "hit"


def test_context_length_names_both_counts() -> None:
    assert answer_budget(90, None, 100) == 10
    with pytest.raises(
        ContextLengthExceeded, match="90 tokens and 11 are asked for, but the model holds 100"
    ):
        answer_budget(90, 11, 100)
    with pytest.raises(ContextLengthExceeded):
        answer_budget(100, None, 100)


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


def test_stop_string_equal_to_the_whole_output(client: Client) -> None:
    text, _ = client.answer(ask("plain"))
    cut, end = client.answer(ask("cut", sampling=Sampling(max_tokens=6, stop=(text,))))
    assert cut == "" and end.reason == "stop"


def test_one_token_answers(client: Client) -> None:
    _, end = client.answer(ask("one", sampling=Sampling(max_tokens=1)))
    assert end.usage.completion_tokens == 1 and end.reason == "length"


def test_end_of_answer_as_the_first_token(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.family, "stop_tokens", frozenset(range(runtime.family.shape.vocab)))
    text, end = client.answer(ask("eos"))
    assert text == "" and end.reason == "stop" and end.usage.completion_tokens == 1


def test_answers_longer_than_the_first_buffer(client: Client) -> None:
    _, end = client.answer(ask("long", sampling=Sampling(max_tokens=450)))
    assert end.usage.completion_tokens == 450


def test_concurrent_requests_answer_as_alone(client: Client) -> None:
    questions = [(said("system", "x" * n), user(0, 1, f"What is {n}?")) for n in range(1, 7)]
    alone = [client.answer(ask(f"a{n}", question))[0] for n, question in enumerate(questions)]
    streams = [client.start(ask(f"b{n}", question)) for n, question in enumerate(questions)]
    together = ["".join(e.text for e in drain(events) if isinstance(e, TextDelta)) for events in streams]
    assert together == alone


def test_a_request_changes_options_of_the_default_policy_one_by_one(runtime: Runtime) -> None:
    paper = replace(runtime, defaults=Defaults("conduit", 0.1, {"preset": "paper"}))
    changed = paper.choose(CacheOptions(options={"image_weight": 0.5})).policy
    assert changed == make_policy("conduit", {"preset": "paper", "image_weight": 0.5})
    assert paper.choose(CacheOptions(policy="conduit")).policy == make_policy("conduit", {})


def test_refused_models_answer_by_full_prefill(runtime: Runtime) -> None:
    worker = Worker(replace(runtime, refused="a test"))
    worker.start()
    _, end = Client(worker).answer(ask("r"))
    assert end.report.policy == "full" and "a test" in (end.report.fallback or "")
    status = worker.status()
    assert status.ready and status.degraded == ("reuse is refused, all is computed: a test",)
    worker.stop(0)


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


def test_events_of_one_step_come_together(client: Client) -> None:
    """Of requests that share a listener, which is woken once a step and not once a request."""
    steps: queue.Queue[Sequence[Event]] = queue.Queue()
    for name in ("a", "b"):
        client.worker.submit(ask(name, sampling=Sampling(max_tokens=40)), steps.put)
    seen: list[Sequence[Event]] = []
    while sum(isinstance(event, Finished) for step in seen for event in step) < 2:
        seen.append(steps.get(timeout=WAIT))
    texts = [[event.request_id for event in step if isinstance(event, TextDelta)] for step in seen]
    assert ["a", "b"] in map(sorted, texts)
    assert all(len(names) == len(set(names)) for names in texts), "a step gives each request one token"


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


@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
def test_promise_2_holds_for_every_codec_and_mode(tiny_path: Path, tmp_path: Path, codec: str) -> None:
    settings = StoreSettings(path=tmp_path, memory_bytes=1 << 24, decoded_bytes=1 << 24, codec=codec)
    shifted = (said("system", "Slowly."), user(0, 1, "What is K?"))
    answers = []
    for run in range(2):
        store = open_store(settings)
        worker = Worker(load_runtime(ModelSettings(str(tiny_path), device="cpu"), store, codec))
        worker.start()
        for mode in ("auto", "read", "bypass", "rewrite"):
            request = ask(f"{run}{mode}", shifted, cache=CacheOptions(mode=mode))  # type: ignore[arg-type]
            answers.append(Client(worker).answer(request)[0])
        worker.stop(0)
        store.entries.close()
    assert len(set(answers)) == 1


def test_stale_buffers_never_reach_an_answer(client: Client, runtime: Runtime) -> None:
    question = (user("What is K?", 0, 1),)
    before, _ = client.answer(ask("clean", question))
    for poison in (float("nan"), 7.0):
        kv = runtime.pool.take(300)
        kv.keys.fill_(poison)
        kv.values.fill_(poison)
        runtime.pool.give_back(kv)
        assert client.answer(ask(f"poisoned {poison}", question))[0] == before


def test_shadow_check_measures_reuse_in_idle_time(runtime: Runtime) -> None:
    worker = Worker(runtime, shadow_share=1.0)
    worker.start()
    client = Client(worker)
    shifted = (said("system", "Slowly."), user(0, 1, "What is K?"))
    client.answer(ask("exact", shifted, cache=CacheOptions(refresh_ratio=1.0)))
    client.answer(ask("full", shifted, cache=CacheOptions(policy="full")))  # nothing to compare
    wait_for(lambda: worker.status().shadow.checked == 1)
    assert worker.status().shadow.agreed == 1 and worker.status().shadow.kl_sum < 1e-4
    client.answer(ask("reused", shifted, cache=CacheOptions(policy="reuse")))
    wait_for(lambda: worker.status().shadow.checked == 2)
    assert worker.status().shadow.kl_sum > 1e-4
    worker.stop(0)
    assert runtime.pool.taken == 0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
