"""Requests that go on from chains: what they find, what they compute, that exact ones answer as full prefill does."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.messages import (
    CacheOptions,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Message,
    Sampling,
    TextDelta,
)
from engine.policies.known import POLICIES
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import IMAGES, WAIT, Client, ask, drain, image, open_runtime
from tests.engine.conftest import picture, said, user

SYSTEM = said("system", "Read them all, slowly.")
FIRST = (SYSTEM, user(0, 1, "What is K on the red page?"))
SECOND = (SYSTEM, user(0, 1, "And L?"))
OFF, FULL = CacheOptions(chain="off"), CacheOptions(policy="full")
TRUTH = CacheOptions(policy="full", chain="off")


@pytest.fixture
def runtime(tiny_path: Path, tmp_path: Path) -> Iterator[Runtime]:
    runtime = open_runtime(tiny_path, tmp_path / "store", 1 << 26)
    yield runtime
    runtime.store.entries.close()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    worker = Worker(runtime, Limits(waiting=8, running=3))
    worker.start()
    yield Client(worker)
    worker.stop(0)
    assert runtime.pool.taken == 0
    assert runtime.store.admin.stats().leases == 0
    assert runtime.chains.stats().leases == 0


def test_an_unchanged_prefix_is_taken_as_it_is_and_only_the_question_is_computed(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    expected, _ = client.answer(ask("truth", SECOND, cache=TRUTH))
    text, end = client.answer(ask("second", SECOND, cache=FULL))
    report = end.report
    assert text == expected
    assert [i.tier for i in report.images] == ["chain", "chain"]
    assert [i.chained for i in report.images] == [i.tokens for i in report.images]
    assert all(i.exact and i.outcome == "hit" for i in report.images)
    assert report.reused == report.refreshed == report.chained_refreshed == 0
    assert 49 < report.chained_exact < end.usage.prompt_tokens
    assert end.usage.cached_tokens == report.chained_exact
    assert end.usage.cache_write_tokens == 0


def test_the_same_request_again_computes_one_row(client: Client) -> None:
    _, cold = client.answer(ask("cold", FIRST, cache=FULL))
    _, warm = client.answer(ask("warm", FIRST, cache=FULL))
    assert warm.report.chained_exact == warm.usage.prompt_tokens - 1
    assert cold.report.chained_exact == 0


def test_an_answer_sent_back_is_part_of_the_chain(client: Client) -> None:
    text, first = client.answer(ask("first", FIRST, cache=FULL))
    follow_up = (*FIRST, said("assistant", text), user("And L?"))
    expected, _ = client.answer(ask("truth", follow_up, cache=TRUTH))
    answer, end = client.answer(ask("second", follow_up, cache=FULL))
    assert answer == expected
    # The prompt, and of the answer the rows there are: none for the token drawn last.
    computed = first.usage.prompt_tokens + first.usage.completion_tokens - 1
    prompt = client.worker.runtime.prompt
    sent = prompt.tokenizer.encode(text, add_special_tokens=False).ids
    assert end.report.chained_exact >= first.usage.prompt_tokens
    if len(sent) == first.usage.completion_tokens:
        assert end.report.chained_exact == computed


def test_an_answer_that_was_changed_is_new_from_there_on(client: Client) -> None:
    _, first = client.answer(ask("first", FIRST, cache=FULL))
    changed = (*FIRST, said("assistant", "~ something else entirely"), user("And L?"))
    expected, _ = client.answer(ask("truth", changed, cache=TRUTH))
    answer, end = client.answer(ask("second", changed, cache=FULL))
    assert answer == expected
    assert end.report.chained_exact == first.usage.prompt_tokens


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_promise_2_an_exact_chain_gives_every_policy_full_prefill_s_answer(
    client: Client, policy: str
) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    expected, _ = client.answer(ask("truth", SECOND, cache=TRUTH))
    for use in ("auto", "exact"):
        text, end = client.answer(ask(use, SECOND, cache=CacheOptions(policy=policy, chain=use)))
        assert text == expected
        assert end.report.refreshed == end.report.reused == 0
        assert end.report.policy == policy


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_promise_2_without_a_chain_the_same_request_has_the_same_answer(client: Client, policy: str) -> None:
    """Whatever is held: `off` neither reads it nor adds to it."""
    cache = CacheOptions(policy=policy, chain="off")
    cold, cold_end = client.answer(ask("cold", FIRST, cache=cache))
    assert client.worker.runtime.chains.stats().segments == 0
    client.answer(ask("full", FIRST, cache=FULL))
    segments = client.worker.runtime.chains.stats().segments
    warm, warm_end = client.answer(ask("warm", FIRST, cache=cache))
    assert warm == cold
    assert warm_end.report.refreshed == cold_end.report.refreshed
    assert warm_end.report.chained_exact == warm_end.report.chained_refreshed == 0
    assert client.worker.runtime.chains.stats().segments == segments


@pytest.mark.parametrize(
    ("mode", "reads", "keeps"),
    [("auto", True, True), ("read", True, False), ("rewrite", False, True), ("bypass", False, False)],
)
def test_the_cache_mode_holds_for_chains_too(client: Client, mode: str, reads: bool, keeps: bool) -> None:
    chains = client.worker.runtime.chains
    asked = CacheOptions(mode=mode, policy="full")  # type: ignore[arg-type]
    client.answer(ask("first", FIRST, cache=asked))
    assert (chains.stats().segments > 0) == keeps
    client.answer(ask("kept", FIRST, cache=FULL))
    _, end = client.answer(ask("second", SECOND, cache=asked))
    assert (end.report.chained_exact > 0) == reads


def test_only_the_canonical_head_of_a_refreshed_prompt_is_exact(client: Client) -> None:
    """Behind the default prompt the first image is exact, and what comes behind the second is not."""
    asked = (user(0, 1, "What is K?"),)
    _, first = client.answer(ask("first", asked, cache=CacheOptions(chain="exact")))
    _, again = client.answer(ask("again", asked, cache=CacheOptions(chain="exact")))
    assert [i.tier for i in again.report.images] == ["chain", "decoded"]
    assert again.report.chained_refreshed == 0
    assert again.report.images[1].refreshed == first.report.images[1].refreshed
    shifted = (SYSTEM, user(0, 1, "What is K?"))
    client.answer(ask("shifted", shifted, cache=CacheOptions(chain="exact")))
    _, end = client.answer(ask("shifted again", shifted, cache=CacheOptions(chain="exact")))
    assert [i.tier for i in end.report.images] == ["decoded", "decoded"]
    assert 0 < end.report.chained_exact < end.usage.prompt_tokens - 49


def test_a_prompt_that_was_refined_while_it_was_answered_is_exact(client: Client) -> None:
    _, first = client.answer(ask("first", FIRST, cache=CacheOptions(refine=4096)))
    assert first.report.refined > 49
    expected, _ = client.answer(ask("truth", SECOND, cache=TRUTH))
    text, end = client.answer(ask("second", SECOND, cache=CacheOptions(chain="exact")))
    assert text == expected
    assert end.report.chained_exact > 49 and end.report.refreshed == 0
    partly = (said("system", "Now."), user(0, 1, "What is K?"))
    _, first = client.answer(ask("third", partly, cache=CacheOptions(refine=4)))
    assert 0 < first.report.refined < first.usage.prompt_tokens
    _, end = client.answer(ask("fourth", partly, cache=CacheOptions(chain="exact")))
    assert end.report.chained_exact < first.usage.prompt_tokens - 1


def test_no_chain_crosses_tenants(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    for tenant in ("other", "tenant+salt"):
        _, end = client.answer(ask(tenant, FIRST, cache=FULL, tenant=tenant))
        assert end.report.chained_exact == 0


def test_a_request_beside_another_finds_what_that_one_prefilled(client: Client) -> None:
    """Before the first has answered."""
    long = replace(ask("first", FIRST, cache=FULL), sampling=Sampling(max_tokens=300))
    events = client.start(long)
    while not isinstance(events.get(timeout=WAIT), TextDelta):
        pass
    _, end = client.answer(ask("second", SECOND, cache=FULL))
    assert end.report.chained_exact > 49
    client.worker.abort("first")
    assert isinstance(drain(events)[-1], Failed | Finished)


def test_what_an_aborted_request_computed_is_not_lost(client: Client) -> None:
    events = client.start(replace(ask("first", FIRST, cache=FULL), sampling=Sampling(max_tokens=300)))
    while not isinstance(events.get(timeout=WAIT), TextDelta):
        pass
    client.worker.abort("first")
    assert isinstance(drain(events)[-1], Failed)
    _, end = client.answer(ask("second", FIRST, cache=FULL))
    assert end.report.chained_exact == end.usage.prompt_tokens - 1


def test_pins_reach_images_that_a_chain_holds(client: Client) -> None:
    client.answer(ask("entries", FIRST, cache=OFF))
    client.answer(ask("first", FIRST, cache=FULL))
    _, end = client.answer(ask("pinned", SECOND, cache=CacheOptions(pin_seconds=60)))
    assert [i.tier for i in end.report.images] == ["chain", "chain"]
    admin = client.worker.runtime.store.admin
    assert [admin.entry(i.key).pinned for i in end.report.images] == ["soft", "soft"]


@pytest.mark.parametrize("policy", ["full", "conduit"])
def test_chains_give_way_to_requests(tiny_path: Path, tmp_path: Path, policy: str) -> None:
    """Chains and running requests together stay within the worker's bytes, and no request waits for a chain to go."""
    runtime = open_runtime(tiny_path, tmp_path, 1 << 26)
    request = ask("x", FIRST, cache=CacheOptions(policy=policy))
    size = 100 * runtime.pool.slot_bytes
    worker = Worker(runtime, Limits(running=3, bytes=2 * size))
    worker.start()
    client = Client(worker)
    for number in range(6):
        system = said("system", f"Number {number}. " + "Read slowly. " * 3)
        client.answer(replace(request, id=f"a{number}", messages=(system, FIRST[1])))
        assert runtime.chains.stats().bytes <= 2 * size
    assert runtime.chains.stats().evictions["capacity"] > 0
    worker.stop(0)
    assert runtime.pool.taken == runtime.chains.stats().leases == 0
    runtime.store.entries.close()


def test_greedy_tokens_of_exact_chains_are_those_of_full_prefill(client: Client) -> None:
    follow_conversations(client, 12)


@pytest.mark.slow
def test_greedy_tokens_of_exact_chains_are_those_of_full_prefill_for_200_conversations(
    client: Client,
) -> None:
    follow_conversations(client, 200)


def follow_conversations(client: Client, count: int) -> None:
    """A tree of conversations of several turns with shared heads and forks: every turn by full prefill with chains, or
    by any policy where all images are in the chain already, equals full prefill without."""
    draw = random.Random(5)
    pictures = [image(picture(seed, 84, 84)) for seed in range(6)]
    open_ends: list[tuple[tuple[Message, ...], tuple[int, ...]]] = [
        ((said("system", system),), ()) for system in ("Slowly.", "Read them all, and say what they say.")
    ]
    chained = 0
    for number in range(count):
        messages, images = draw.choice(open_ends)
        new = tuple(draw.sample(range(6), draw.choice([0, 0, 1, 2]))) if images else (draw.randrange(6),)
        places = range(len(images), len(images) + len(new))
        question = draw.choice(["What is K?", "And L? Say more.", "Where is M on the red page, and why?"])
        asked = (*messages, user(*places, question))
        images = (*images, *new)
        policy = "full" if new else draw.choice(sorted(POLICIES))
        request = ask(f"c{number}", asked, cache=CacheOptions(policy=policy))
        request = replace(request, images=tuple(pictures[i] for i in images))
        text, end = client.answer(request)
        expected, _ = client.answer(replace(request, id=f"t{number}", cache=TRUTH))
        assert text == expected, number
        assert end.report.chained_refreshed == 0
        chained += end.report.chained_exact
        if len(images) < 8 and len(asked) < 9:
            open_ends.append(((*asked, said("assistant", text)), images))
    assert chained > 20 * count


def test_many_disconnects_leave_nothing_behind(client: Client) -> None:
    disconnect(client, 40)


@pytest.mark.slow
def test_500_disconnects_leave_nothing_behind(client: Client) -> None:
    disconnect(client, 500)


def disconnect(client: Client, count: int) -> None:
    """Requests of one conversation, aborted at any moment: each ends once, and the fixture checks what is left."""
    draw = random.Random(3)
    waiting: list[tuple[queue.Queue[Event], list[Event]]] = []
    for number in range(count):
        events = client.start(_endless(number))
        seen = [events.get(timeout=WAIT) for _ in range(draw.randrange(4))]
        client.worker.abort(f"d{number}")
        waiting.append((events, seen))
        if len(waiting) >= 4:
            _end_once(*waiting.pop(0))
    for one in waiting:
        _end_once(*one)
    _, end = client.answer(ask("after", SECOND))
    assert end.report.chained_exact > 0


def _endless(number: int) -> GenerateRequest:
    longer = (*FIRST, said("assistant", "It is four."), user("And L?"))
    edited = (said("system", f"It is day {number % 3}."), *longer[1:])
    messages = (FIRST, longer, edited)[number % 3]
    policy = ("full", "conduit", "cacheblend", "impact")[number % 4]
    cache = CacheOptions(policy=policy, turns="reuse")
    return GenerateRequest(f"d{number}", "tenant", messages, IMAGES[:2], Sampling(max_tokens=200), cache)


def _end_once(events: queue.Queue[Event], seen: list[Event]) -> None:
    while not any(isinstance(event, Finished | Failed) for event in seen):
        seen.append(events.get(timeout=WAIT))
    assert events.empty()
    assert sum(isinstance(event, Finished | Failed) for event in seen) == 1
