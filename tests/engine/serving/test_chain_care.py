"""Chains through the operator's calls: seen, counted, pinned and evicted one by one, in memory and in the tiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.messages import CacheOptions
from engine.serving import spill
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from store.types import EntryFilter, EntryInfo, EvictResult
from tests.engine.asking import Client, ask, desk, restarted, store_settings
from tests.engine.conftest import said, user

FIRST = (said("system", "Read them all, slowly."), user(0, 1, "What is K on the red page?"))
FULL = CacheOptions(policy="full")
CHAINS = EntryFilter(kind="chain")


@pytest.fixture
def runtime(loaded: Runtime, tmp_path: Path) -> Iterator[Runtime]:
    runtime = restarted(loaded, replace(store_settings(tmp_path), memory_bytes=0))
    yield runtime
    runtime.store.entries.close()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    worker = Worker(runtime, Limits(waiting=8, running=3))
    worker.start()
    yield Client(worker)
    worker.stop(0)


def call(client: Client, name: str, *arguments: object) -> Any:
    runtime = client.worker.runtime
    assert runtime.store.entries.flush(60)
    return desk(runtime).answer(name, arguments)


def segments(client: Client) -> list[EntryInfo]:
    return list(call(client, "entries", CHAINS, None, 1000).entries)


def chained(client: Client) -> int:
    _, end = client.answer(ask("look", FIRST, cache=replace(FULL, mode="read")))
    return int(end.report.chained_exact)


def test_segments_are_listed_with_where_they_lie_and_what_they_are(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    found = segments(client)
    assert {info.state for info in found} == {"exact"} and {info.tenant for info in found} == {"tenant"}
    images = [info for info in found if set(info.tiers) == {"chain", "lmdb"} and info.tokens > 20]
    assert images and all((info.width, info.height) == (0, 0) for info in images)
    one = call(client, "entry", images[0].key)
    assert one == images[0]
    assert [info.kind for info in call(client, "entries", EntryFilter(kind="image"), None, 10).entries] == []


def test_stats_count_segments_by_place_and_state(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    client.answer(ask("second", FIRST[1:], cache=CacheOptions(refresh_ratio=0.3)))
    by_tier = call(client, "stats").chains_by_tier
    assert by_tier.keys() == {"chain", "lmdb"}
    for name, states in by_tier.items():
        assert states.keys() == {"exact", "refreshed"}
        for state, held in states.items():
            found = [info for info in segments(client) if name in info.tiers and info.state == state]
            assert held.entries == len(found) > 0
    memory = client.worker.status().chains
    assert sum(held.bytes for held in by_tier["chain"].values()) == memory.bytes
    assert sum(held.entries for held in by_tier["chain"].values()) == memory.segments


def test_a_dry_run_says_what_would_go_and_a_segment_that_goes_ends_the_chain(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    before, length = segments(client), chained(client)
    planned: EvictResult = call(client, "evict", CHAINS, None, True)
    assert sorted(planned.keys) == sorted(info.key for info in before)
    assert {info.key for info in segments(client)} == set(planned.keys)
    assert chained(client) == length
    *_, second = sorted(
        (held for held in client.worker.runtime.chains.every() if held.segment.image),
        key=lambda held: held.segment.start,
    )
    assert call(client, "delete", second.digest.hex())
    assert call(client, "entry", second.digest.hex()) is None
    assert chained(client) == second.segment.start
    assert not call(client, "delete", second.digest.hex())


@pytest.mark.parametrize("place", ["chain", "lmdb"])
def test_one_place_is_emptied_and_the_other_serves(client: Client, place: str) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    length = chained(client)
    assert call(client, "evict", replace(CHAINS, tier=place), None, False).keys
    assert not [info for info in segments(client) if place in info.tiers]
    assert chained(client) == length


def test_what_a_request_is_about_to_read_is_not_evicted(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    runtime = client.worker.runtime
    image = next(held for held in runtime.chains.every() if held.segment.image)
    image.leases += 1
    result: EvictResult = call(client, "evict", CHAINS, None, False)
    assert result.skipped_leased == 1 and image.digest.hex() not in result.keys
    assert [held.digest for held in runtime.chains.every()] == [image.digest]
    image.leases -= 1


def test_a_pin_reaches_the_beginning_of_the_chain(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=replace(FULL, pin_seconds=60)))
    pinned = [info for info in segments(client) if info.pinned == "soft"]
    assert {info.key for info in pinned} == {info.key for info in segments(client) if "lmdb" in info.tiers}
    result: EvictResult = call(client, "evict", CHAINS, None, False)
    assert result.skipped_pinned == len(pinned) > 0
    assert call(client, "unpin", pinned[0].key)
    assert call(client, "pin", pinned[0].key, None)
    assert call(client, "entry", pinned[0].key).pinned == "hard"


def test_a_pin_reaches_no_more_segments_than_there_is_room_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "MOST_PINNED", 2)
    client.answer(ask("first", FIRST, cache=replace(FULL, pin_seconds=60)))
    first = sorted(client.worker.runtime.chains.every(), key=lambda held: held.segment.start)[:2]
    pinned = {info.key for info in segments(client) if info.pinned}
    assert pinned == {held.digest.hex() for held in first}


def test_records_of_chains_count_for_the_quota_of_their_tenant(client: Client) -> None:
    client.answer(ask("first", FIRST, cache=FULL))
    held = sum(info.bytes for info in segments(client) if "lmdb" in info.tiers)
    call(client, "set_quota", "tenant", held // 2)
    client.answer(ask("second", FIRST[1:], cache=FULL))
    (quota,) = call(client, "quotas")
    assert 0 < quota.held <= held // 2
