"""Chains in the store's tiers: they outlive memory and the process, and are believed only where they are sound."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.chains.outcome import recipe_of
from engine.messages import CacheOptions, Message
from engine.policies.known import POLICIES
from engine.serving.generation import Generation
from engine.serving.prepared import prepare
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from store.segments import SegmentStore
from store.settings import StoreSettings
from store.types import EntryFilter, EntryInfo
from tests.engine.asking import Client, ask, clear, image, restarted, store_settings
from tests.engine.conftest import picture, said, user

SYSTEM = said("system", "Read them all, slowly.")
FIRST = (SYSTEM, user(0, 1, "What is K on the red page?"))
SECOND = (SYSTEM, user(0, 1, "And L?"))
CANONICAL = (user(0, 1, "What is K on the red page?"),)
FULL, TRUTH = CacheOptions(policy="full"), CacheOptions(policy="full", chain="off")
CHAINS = EntryFilter(kind="chain")

Start = Callable[..., "contextmanager[Client]"]


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return replace(store_settings(tmp_path / "store"), memory_bytes=0)


@pytest.fixture
def started(loaded: Runtime, settings: StoreSettings) -> Start:
    """Starts a worker with nothing in memory on what the store holds; at its end nothing is in use any more."""

    @contextmanager
    def start(**changes: object) -> Iterator[Client]:
        runtime = restarted(loaded, replace(settings, **changes))  # type: ignore[arg-type]
        worker = Worker(runtime, Limits(waiting=8, running=3))
        worker.start()
        try:
            yield Client(worker)
        finally:
            worker.stop(0)
            runtime.store.entries.close()
        assert runtime.pool.taken == runtime.chains.stats().leases == 0
        assert runtime.store.admin.stats().leases == 0

    return start


def records(client: Client) -> list[EntryInfo]:
    """Of chains, all of them written."""
    store = client.worker.runtime.store
    assert store.entries.flush(60)
    return list(store.admin.entries(CHAINS, limit=1000).entries)


def images_of(client: Client) -> dict[str, EntryInfo]:
    """Records of the images of all chains in memory, by key."""
    chains = client.worker.runtime.chains
    images = {held.digest.hex() for held in chains.every() if held.segment.image}
    return {info.key: info for info in records(client) if info.key in images and "lmdb" in info.tiers}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_promise_2_an_exact_chain_gives_every_policy_full_prefill_s_answer_after_a_restart(
    started: Start, policy: str
) -> None:
    with started() as client:
        client.answer(ask("first", FIRST, cache=FULL))
        expected, _ = client.answer(ask("truth", SECOND, cache=TRUTH))
    for use in ("auto", "exact"):
        with started() as client:
            text, end = client.answer(ask(use, SECOND, cache=CacheOptions(policy=policy, chain=use)))
            assert text == expected
            assert [i.tier for i in end.report.images] == ["chain", "chain"]
            assert end.report.refreshed == end.report.reused == end.report.compiled == 0
            assert end.report.chained_exact > 49 and end.report.chained_refreshed == 0
            assert client.worker.status().chains.loaded > 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_promise_2_a_refreshed_chain_is_as_good_after_a_restart_as_before(
    started: Start, policy: str
) -> None:
    """The same tokens as without the restart, and the same rows from the chain: whatever the policy leaves."""
    cache = CacheOptions(policy=policy, refresh_ratio=0.3)
    with started() as client:
        client.answer(ask("first", FIRST, cache=cache))
        expected, unbroken = client.answer(ask("second", SECOND, cache=replace(cache, mode="read")))
    with started() as client:
        text, end = client.answer(ask("second", SECOND, cache=replace(cache, mode="read")))
    assert text == expected
    for field in ("chained", "chained_exact", "chained_refreshed", "refreshed"):
        assert getattr(end.report, field) == getattr(unbroken.report, field), field


def test_a_refreshed_chain_serves_no_other_recipe_after_a_restart(started: Start) -> None:
    with started() as client:
        client.answer(ask("first", FIRST))
        assert recipe_of(client.worker.runtime.choose(CacheOptions())) is not None
    for cache in (
        CacheOptions(refresh_ratio=0.2),
        CacheOptions(options={"min_per_image": 1}),
        CacheOptions(policy="prophetkv"),
        CacheOptions(chain="exact"),
    ):
        with started() as client:
            _, end = client.answer(ask("other", FIRST, cache=replace(cache, mode="read")))
            assert end.report.chained_refreshed == end.report.chained == 0
    with started() as client:
        _, end = client.answer(ask("same", FIRST))
        assert end.report.chained_refreshed > 0


def test_the_same_request_after_a_restart_computes_one_row(started: Start) -> None:
    with started() as client:
        client.answer(ask("cold", FIRST, cache=FULL))
    with started() as client:
        _, end = client.answer(ask("warm", FIRST, cache=FULL))
        assert end.report.chained_exact == end.usage.prompt_tokens - 1


def test_a_conversation_goes_on_after_a_restart_from_the_end_of_the_answer(started: Start) -> None:
    with started() as client:
        text, first = client.answer(ask("first", FIRST, cache=FULL))
        follow_up = (*FIRST, said("assistant", text), user("And L?"))
        expected, unbroken = client.answer(ask("second", follow_up, cache=replace(FULL, mode="read")))
    with started() as client:
        answer, end = client.answer(ask("second", follow_up, cache=FULL))
    assert answer == expected
    assert end.report.chained_exact == unbroken.report.chained_exact >= first.usage.prompt_tokens


def test_a_tree_of_conversations_that_share_heads_and_fork_comes_back_whole(started: Start) -> None:
    """Each way through the tree is found as far as memory had it, less than a block of text where ways part in it."""
    pictures = [image(picture(seed, 84, 84)) for seed in range(4)]
    draw, asked = random.Random(2), []
    with started() as client:
        ends: list[tuple[tuple[Message, ...], tuple[int, ...]]] = [((SYSTEM,), ())]
        for number in range(10):
            messages, images = draw.choice(ends)
            new = tuple(draw.sample(range(4), 1 if not images else draw.choice([0, 1])))
            question = f"What is {number}? " + "Say all that you see on every page. " * draw.choice([0, 1, 4])
            turn = (*messages, user(*range(len(images), len(images) + len(new)), question))
            request = replace(
                ask(f"c{number}", turn, cache=FULL), images=tuple(pictures[i] for i in (*images, *new))
            )
            text, _ = client.answer(request)
            asked.append((request, text))
            ends.append(((*turn, said("assistant", text)), (*images, *new)))
    with started() as client:
        for request, expected in asked:
            text, end = client.answer(replace(request, cache=replace(FULL, mode="read")))
            assert text == expected
            assert end.report.chained == end.report.visual_tokens
            assert end.report.chained_exact >= end.usage.prompt_tokens - 64


def test_no_chain_crosses_tenants_or_salts_after_a_restart(started: Start) -> None:
    with started() as client:
        client.answer(ask("first", FIRST, cache=FULL))
    with started() as client:
        for tenant in ("other", "tenant+salt", "tenan"):
            _, end = client.answer(ask(tenant, FIRST, cache=FULL, tenant=tenant))
            assert end.report.chained_exact == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"weights_fingerprint": "other"},
        {"dtype": "bfloat16"},
        {"rope": "other"},
        {"processor": "other"},
        {"prefix_ids": (1,)},
        {"model_id": "other"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_no_chain_crosses_models(started: Start, changed: dict[str, object]) -> None:
    with started() as client:
        client.answer(ask("first", FIRST, cache=FULL))
    with started() as client:
        runtime = client.worker.runtime
        object.__setattr__(runtime, "model_key", replace(runtime.model_key, **changed))
        _, end = client.answer(ask("second", FIRST, cache=FULL))
        assert end.report.chained_exact == 0


def test_what_leaves_memory_is_found_in_the_tiers(started: Start) -> None:
    with started() as client:
        client.answer(ask("first", FIRST, cache=FULL))
        chains = client.worker.runtime.chains
        chains.leave_room(0)
        assert chains.stats().segments == 0
        chains.leave_room(None)
        _, end = client.answer(ask("second", FIRST, cache=FULL))
        assert end.report.chained_exact == end.usage.prompt_tokens - 1


def test_a_chain_that_does_not_fit_in_memory_is_loaded_from_its_beginning_as_far_as_it_does(
    started: Start,
) -> None:
    with started() as client:
        client.answer(ask("first", FIRST, cache=FULL))
        size = client.worker.runtime.chains.stats().bytes
    with started() as client:
        chains = client.worker.runtime.chains
        chains.budget = chains._room = size - 1
        _, end = client.answer(ask("second", FIRST, cache=replace(FULL, mode="read")))
        assert 0 < end.report.chained_exact < end.usage.prompt_tokens - 1
        assert chains.stats().bytes < size


def test_a_record_holds_only_what_its_image_s_entry_does_not(started: Start) -> None:
    """Of a refreshed image the rows that were computed, of an exact one that was restored none."""
    with started() as client:
        client.answer(ask("first", CANONICAL, cache=CacheOptions(refresh_ratio=0.2)))
        runtime = client.worker.runtime
        images = sorted(images_of(client).values(), key=lambda info: info.state)
        assert [info.state for info in images] == ["exact", "refreshed"]
        assert images[0].bytes < runtime.pool.slot_bytes * 2 + 1024
        assert images[1].bytes < runtime.pool.slot_bytes * 10 + 1024
        expected, unbroken = client.answer(
            ask("second", CANONICAL, cache=CacheOptions(refresh_ratio=0.2, mode="read"))
        )
    with started() as client:
        text, end = client.answer(
            ask("second", CANONICAL, cache=CacheOptions(refresh_ratio=0.2, mode="read"))
        )
    assert text == expected
    assert end.report.chained_exact == unbroken.report.chained_exact > 24
    assert end.report.chained_refreshed == unbroken.report.chained_refreshed > 0


def test_a_missing_entry_behind_a_record_shortens_the_chain(started: Start) -> None:
    with started() as client:
        client.answer(ask("first", CANONICAL, cache=CacheOptions(chain="exact")))
        records(client)
    with started() as client:
        client.worker.runtime.store.admin.evict(EntryFilter(kind="image"))
        _, end = client.answer(ask("second", CANONICAL, cache=CacheOptions(chain="exact")))
        assert 0 < end.report.chained_exact < 24
        assert [i.tier for i in end.report.images] == [None, None]
        assert client.worker.status().chains.lost == {"entry": 1}


def test_chains_go_with_their_tenant_from_memory_and_tiers(started: Start) -> None:
    with started() as client:
        for tenant in ("tenant", "tenant+salt", "tenants"):
            client.answer(ask(tenant, FIRST, cache=FULL, tenant=tenant))
        assert {info.tenant for info in records(client)} == {"tenant", "tenant+salt", "tenants"}
        cleared = clear(client.worker.runtime, "tenant")
        assert len(set(cleared.keys)) == len(cleared.keys)
        assert {info.tenant for info in records(client)} == {"tenants"}
        assert {held.tenant for held in client.worker.runtime.chains.every()} == {"tenants"}
    with started() as client:
        for tenant, found in (("tenant", False), ("tenant+salt", False), ("tenants", True)):
            _, end = client.answer(ask(tenant, FIRST, cache=replace(FULL, mode="read"), tenant=tenant))
            assert (end.report.chained_exact > 0) == found


def test_what_became_exact_takes_the_place_of_what_was_refreshed(started: Start) -> None:
    with started() as client:
        client.answer(ask("first", FIRST))
        refreshed = images_of(client)
        assert [info.state for info in refreshed.values()] == ["refreshed", "refreshed"]
        client.answer(ask("exact", FIRST, cache=CacheOptions(refine=4096)))
        assert [info.state for info in images_of(client).values()] == ["exact", "exact"]
        assert not refreshed.keys() & {info.key for info in records(client)}


def test_a_chain_loses_its_end_first_in_a_tier_as_well(started: Start) -> None:
    """When it has just been written, and when it was used."""
    with started() as client:
        for name in ("written", "used"):
            client.answer(ask(name, FIRST, cache=FULL))
            records(client)
            (tier,) = client.worker.runtime.store.admin._stack.tiers
            held = sorted(client.worker.runtime.chains.every(), key=lambda held: held.segment.start)
            rows = [row for one in held for digest in one.written if (row := tier.row(digest))]
            uses = [row.last_used for row in rows]
            assert len(uses) == len(held) and uses == sorted(uses, reverse=True) != sorted(uses)


def test_written_on_second_use_where_entries_are(started: Start) -> None:
    with started(persist_on="second") as client:
        client.answer(ask("first", FIRST, cache=FULL))
        assert [info for info in records(client) if "lmdb" in info.tiers] == []
        client.answer(ask("second", FIRST, cache=FULL))
        assert [info for info in records(client) if "lmdb" in info.tiers] != []


def test_an_operator_may_keep_chains_in_memory_only(started: Start) -> None:
    with started(chains=False) as client:
        client.answer(ask("first", FIRST, cache=FULL))
        assert {info.tiers for info in records(client)} == {("chain",)}
        _, end = client.answer(ask("second", FIRST, cache=FULL))
        assert end.report.chained_exact > 49
    with started(chains=False) as client:
        _, end = client.answer(ask("third", FIRST, cache=FULL))
        assert end.report.chained_exact == 0


@pytest.mark.parametrize("mode", ["read", "bypass"])
def test_what_leaves_nothing_in_memory_writes_nothing(started: Start, mode: str) -> None:
    with started() as client:
        client.answer(ask("first", FIRST, cache=CacheOptions(policy="full", mode=mode)))  # type: ignore[arg-type]
        client.answer(ask("off", FIRST, cache=CacheOptions(policy="full", chain="off")))
        assert records(client) == []


def test_logits_behind_an_exact_chain_are_full_prefill_s_after_a_restart(
    loaded: Runtime, settings: StoreSettings
) -> None:
    """fp32, to 1e-4: another question, a turn more, the same again."""
    runtime = restarted(loaded, settings)
    first_logits(runtime, FIRST, FULL)
    runtime.store.entries.close()
    more = (*FIRST, said("assistant", "four"), user("And L?"))
    for messages in (FIRST, SECOND, more):
        runtime = restarted(loaded, settings)
        found = first_logits(runtime, messages, CacheOptions(mode="read"))
        assert runtime.chains.stats().loaded > 0
        assert (found - first_logits(runtime, messages, TRUTH)).abs().max() <= 1e-4
        runtime.store.entries.close()


def first_logits(runtime: Runtime, messages: tuple[Message, ...], cache: CacheOptions) -> torch.Tensor:
    """Of one request, which leaves what it may."""
    generation = Generation(
        runtime, prepare(runtime, ask("x", messages, cache=cache), 0.0), lambda text: None
    )
    with torch.inference_mode():
        for _ in generation.prefill():
            pass
        generation.keep()
        generation.write()
    generation.close()
    assert generation.first_logits is not None
    return generation.first_logits


def test_promise_5_a_chain_that_cannot_be_read_or_written_costs_no_answer(
    started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("out of memory")

    with started() as client:
        expected, _ = client.answer(ask("truth", FIRST, cache=TRUTH))
        for name in ("load", "offer"):
            monkeypatch.setattr(SegmentStore, name, broken)
            text, end = client.answer(ask(name, FIRST, cache=FULL))
            assert text == expected
            client.worker.runtime.chains.leave_room(0)
            client.worker.runtime.chains.leave_room(None)
            assert end.report.chained_exact == 0
