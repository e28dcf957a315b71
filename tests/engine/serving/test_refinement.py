"""Chains that become exact while the worker has nothing else to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.messages import CacheOptions, Message, Sampling
from engine.serving import refinement as module
from engine.serving.chaining import Chaining
from engine.serving.generation import Generation
from engine.serving.prepared import prepare
from engine.serving.refinement import MOST_WAITING, Refinement, Unfinished
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import WAIT, Client, ask, clear, open_runtime
from tests.engine.conftest import said, user

SYSTEM = said("system", "Read them all, slowly.")
FIRST = (SYSTEM, user(0, 1, "What is K on the red page?"))
SECOND = (SYSTEM, user(0, 1, "And L?"))
EXACT = CacheOptions(chain="exact")
TRUTH = CacheOptions(policy="full", chain="off")
LONG_AGO = -1e9


@pytest.fixture
def runtime(tiny_path: Path, tmp_path: Path) -> Iterator[Runtime]:
    runtime = open_runtime(tiny_path, tmp_path / "store", 1 << 26)
    yield runtime
    assert runtime.pool.taken == runtime.chains.stats().leases == 0
    assert runtime.store.admin.stats().leases == 0
    runtime.store.entries.close()


@contextmanager
def working(runtime: Runtime, seconds: float, limit: int | None = None) -> Iterator[Client]:
    worker = Worker(runtime, Limits(running=2, bytes=limit, refine_idle=seconds))
    worker.start()
    try:
        yield Client(worker)
    finally:
        worker.stop(0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_refreshed_prompt_becomes_exact_when_there_is_nothing_else_to_do(runtime: Runtime) -> None:
    with working(runtime, 60) as client:
        client.answer(ask("first", FIRST))
        until(lambda: client.worker.status().chains.finished == 1)
        expected, _ = client.answer(ask("truth", SECOND, cache=TRUTH))
        text, end = client.answer(ask("second", SECOND))
    assert text == expected
    assert [i.tier for i in end.report.images] == ["chain", "chain"]
    assert end.report.chained_refreshed == end.report.refreshed == 0
    assert client.worker.status().chains.refined_rows >= 49


def test_the_answer_becomes_exact_with_its_prompt_and_what_was_refreshed_goes(runtime: Runtime) -> None:
    with working(runtime, 60) as client:
        text, first = client.answer(ask("first", FIRST))
        until(lambda: client.worker.status().chains.finished == 1)
        assert all(not held.quality for held in runtime.chains._held.values())
        follow_up = (*FIRST, said("assistant", text), user("And L?"))
        expected, _ = client.answer(ask("truth", follow_up, cache=TRUTH))
        answer, end = client.answer(ask("second", follow_up, cache=EXACT))
    assert answer == expected
    assert end.report.chained_exact >= first.usage.prompt_tokens


def test_by_default_nothing_is_finished(runtime: Runtime) -> None:
    with working(runtime, 0) as client:
        client.answer(ask("first", FIRST))
        _, end = client.answer(ask("second", FIRST, cache=EXACT))
        assert client.worker.status().chains.finished == 0
    assert [i.tier for i in end.report.images] == ["decoded", "decoded"]


def test_exact_prompts_and_those_that_keep_nothing_are_not_offered(runtime: Runtime) -> None:
    assert answered(runtime, FIRST, CacheOptions()) is not None
    for cache in (CacheOptions(policy="full"), CacheOptions(chain="off"), CacheOptions(mode="read")):
        assert answered(runtime, FIRST, cache) is None
    assert answered(runtime, (user("text only"),), CacheOptions(), images=0) is None


def answered(
    runtime: Runtime,
    messages: tuple[Message, ...],
    cache: CacheOptions,
    images: int = 2,
    tenant: str = "tenant",
) -> Unfinished | None:
    """What a request leaves to finish, run without a worker."""
    request = ask("x", messages, images=images, cache=cache, tenant=tenant, sampling=Sampling(max_tokens=1))
    generation = Generation(runtime, prepare(runtime, request, 0.0), lambda text: None)
    try:
        with torch.inference_mode():
            for _ in generation.prefill():
                pass
            generation.keep()
            return generation.unfinished()
    finally:
        generation.close()


def begun(runtime: Runtime, messages: tuple[Message, ...] = FIRST, tenant: str = "tenant") -> Unfinished:
    found = answered(runtime, messages, CacheOptions(), tenant=tenant)
    assert found is not None
    return found


def exact(runtime: Runtime, of: Unfinished) -> int:
    match = runtime.chains.find(of.content, of.layout.length, None, count=False)
    runtime.chains.release(match)
    return match.exact


@torch.inference_mode()
def finish(refinement: Refinement) -> int:
    steps = 0
    while not refinement.idle:
        refinement.step()
        steps += 1
    return steps


@torch.inference_mode()
def test_pieces_are_small_and_in_sequence_order(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ROWS", 16)
    unfinished, refinement = begun(runtime), Refinement(runtime, 60)
    refinement.offer(unfinished)
    before, grown = exact(runtime, unfinished), []
    while not refinement.idle:
        refinement.step()
        grown.append(refinement.refined_rows)
    assert len(grown) > (unfinished.layout.length - before) // 16
    assert exact(runtime, unfinished) == unfinished.layout.length
    assert refinement.refined_rows == unfinished.layout.length - before
    assert refinement.finished == 1 and refinement.bytes == 0


@torch.inference_mode()
def test_a_pause_gives_the_memory_back_and_loses_no_image(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_ROWS", 16)
    unfinished, refinement = begun(runtime), Refinement(runtime, 60)
    refinement.offer(unfinished)
    first = unfinished.layout.spans[0].stop
    while exact(runtime, unfinished) < first:
        refinement.step()
    assert refinement.bytes > 0
    refinement.pause()
    assert refinement.bytes == runtime.pool.taken == 0 and not refinement.idle
    finish(refinement)
    assert refinement.finished == 1
    assert refinement.refined_rows <= unfinished.layout.length - first
    assert exact(runtime, unfinished) == unfinished.layout.length


def test_what_was_used_once_and_long_ago_is_left(runtime: Runtime) -> None:
    refinement = Refinement(runtime, 60)
    refinement.offer(replace(begun(runtime), offered=LONG_AGO))
    finish(refinement)
    assert refinement.finished == 0
    again = begun(runtime, SECOND)
    assert again.again
    refinement.offer(replace(again, offered=LONG_AGO))
    finish(refinement)
    assert refinement.finished == 1


def test_a_conversation_waits_once(runtime: Runtime) -> None:
    refinement = Refinement(runtime, 60)
    turns: tuple[Message, ...] = FIRST
    for _ in range(3):
        refinement.offer(begun(runtime, turns))
        turns = (*turns, said("assistant", "four"), user("And L?"))
    (waiting,) = refinement._waiting
    assert waiting.layout.length > begun(runtime).layout.length + 10


def test_so_many_wait_and_no_more(runtime: Runtime) -> None:
    refinement = Refinement(runtime, 60)
    offered = [begun(runtime, (said("system", f"Number {i}."), FIRST[1])) for i in range(MOST_WAITING + 3)]
    for one in offered:
        refinement.offer(one)
    assert refinement._waiting == offered[3:]
    finish(refinement)
    assert refinement.finished == MOST_WAITING
    assert [exact(runtime, one) == one.layout.length for one in offered] == [False] * 3 + [
        True
    ] * MOST_WAITING


def test_the_newest_is_finished_first_and_what_was_used_again_before_all(runtime: Runtime) -> None:
    refinement = Refinement(runtime, 60)
    offered = [begun(runtime, (said("system", f"Number {i}."), FIRST[1])) for i in range(4)]
    offered[1] = replace(offered[1], again=True)
    for one in offered:
        refinement.offer(one)
    order: list[int] = []
    with torch.inference_mode():
        while not refinement.idle:
            refinement.step()
            done = [i for i, one in enumerate(offered) if exact(runtime, one) == one.layout.length]
            order += [i for i in done if i not in order]
    assert order == [1, 3, 2, 0]


def test_an_image_whose_entry_is_gone_ends_it(runtime: Runtime) -> None:
    unfinished, refinement = begun(runtime), Refinement(runtime, 60)
    runtime.store.admin.clear(None, include_pinned=True)
    refinement.offer(unfinished)
    finish(refinement)
    assert refinement.finished == 0 and runtime.pool.taken == 0


def test_what_is_cleared_away_is_not_finished(runtime: Runtime) -> None:
    """Neither what waits nor what has begun: nothing of a tenant comes back behind its clear."""
    waiting, running, refinement = begun(runtime, SECOND), begun(runtime), Refinement(runtime, 60)
    refinement.offer(running)
    with torch.inference_mode():
        for _ in range(3):
            refinement.step()
    refinement.offer(waiting)
    assert clear(runtime, "tenant").keys
    finish(refinement)
    assert runtime.chains.stats().segments == 0


def test_a_request_that_was_under_way_at_a_clear_leaves_nothing(runtime: Runtime) -> None:
    request = ask("x", FIRST, cache=CacheOptions(policy="full"))
    generation = Generation(runtime, prepare(runtime, request, 0.0), lambda text: None)
    clear(runtime, "tenant")
    with torch.inference_mode():
        for _ in generation.prefill():
            pass
        generation.keep()
    generation.close()
    assert runtime.chains.stats().segments == 0


def test_a_chain_that_would_not_fit_is_not_begun(runtime: Runtime) -> None:
    unfinished, refinement = begun(runtime), Refinement(runtime, 60)
    runtime.chains.leave_room(2 * unfinished.layout.length * runtime.pool.slot_bytes - 1)
    refinement.offer(unfinished)
    assert finish(refinement) == 1 and refinement.finished == 0


def test_a_failure_is_logged_and_dropped(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished, refinement = begun(runtime), Refinement(runtime, 60)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module.Refiner, "step", fail)
    refinement.offer(unfinished)
    finish(refinement)
    assert "could not be finished" in caplog.text
    assert refinement.finished == refinement.bytes == runtime.pool.taken == 0


def test_requests_take_the_memory_that_a_refinement_holds(runtime: Runtime) -> None:
    """It gives way, and goes on when they have ended."""
    with working(runtime, 60, limit=320 * runtime.pool.slot_bytes * 8) as client:
        client.answer(ask("first", FIRST))
        for number in range(8):
            client.answer(ask(f"r{number}", (said("system", f"{number}"), FIRST[1]), cache=TRUTH))
        until(lambda: client.worker.status().chains.finished >= 1)


def test_chaining_names_the_entries_of_its_images(runtime: Runtime) -> None:
    request = ask("x", FIRST)
    prepared = prepare(runtime, request, 0.0)
    chaining = Chaining(runtime, "tenant", prepared.choice, prepared.layout, request.images)
    chaining.release()
    chaining.release()
    assert runtime.chains.stats().leases == 0
    unfinished = begun(runtime)
    assert unfinished.keys == tuple(runtime.key("tenant", image) for image in request.images)
