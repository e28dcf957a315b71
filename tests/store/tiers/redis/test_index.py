"""The index beside the records: whatever happens to either, they agree again."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

import pytest

from store.errors import TierFull
from store.open import assemble
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.redis.index import HITS, USED
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, kept, key_in
from tests.store.samples import BlobCodec, content, entry_of, key_of, read, record_of

MIB = 1 << 20
NOW = 2000.0


def filled(tier: RedisTier, count: int = 3, nbytes: int = 256) -> None:
    for number in range(count):
        tier.put(record_of(number, nbytes), NOW + number, never_held)


@pytest.mark.parametrize("lost", [(USED,), (HITS,), (USED, HITS)])
def test_f8_a_deleted_index_is_made_anew_from_the_records(
    server: Server, tier: RedisTier, lost: tuple[str, ...]
) -> None:
    filled(tier)
    server.client.delete(*lost)
    for asked in (tier, RedisTier(server.url, timeout=5.0)):
        assert {row.digest for row in asked.rows()} == {key_of(number).digest for number in range(3)}
        assert {row.bytes for row in asked.rows()} == {record_of(0).nbytes}
    asked.close()


def test_f8_clear_removes_what_a_deleted_index_no_longer_lists(server: Server) -> None:
    store = assemble([RedisTier(server.url, timeout=5.0)], BlobCodec(), 0)
    for number in range(3):
        store.entries.fetch(key_of(number), lambda n=number: entry_of(n)).release()  # type: ignore[misc]
    store.entries.flush(10)
    store.entries.close()
    server.client.delete(USED, HITS)
    store = assemble([RedisTier(server.url, timeout=5.0)], BlobCodec(), 0)
    assert len(store.admin.clear().keys) == 3
    assert kept(server) == []
    store.entries.close()


def test_f8_the_budget_holds_after_the_index_was_lost(server: Server) -> None:
    tier = RedisTier(server.url, 8 * MIB, timeout=5.0)
    filled(tier, 3, 2 * PIECE_BYTES)
    server.client.delete(USED, HITS)
    tier.put(record_of(9, 4 * PIECE_BYTES), NOW + 9, never_held)
    held = sum(server.client.hlen(key) - 1 for key in kept(server))
    assert held * PIECE_BYTES <= 8 * MIB
    assert read(tier, key_of(9).digest) is not None
    tier.close()


def test_a_half_made_index_of_another_machine_is_completed(server: Server, tier: RedisTier) -> None:
    """The index is deleted, and somebody puts a record before anybody looks."""
    filled(tier)
    server.client.delete(USED, HITS)
    other = RedisTier(server.url, timeout=5.0)
    other.put(record_of(7), NOW, never_held)
    expected = {key_of(number).digest for number in (0, 1, 2, 7)}
    assert {row.digest for row in other.rows()} == expected
    assert {row.digest for row in tier.rows()} == expected
    other.close()


def test_a_record_that_left_the_index_alone_is_listed_again(server: Server, tier: RedisTier) -> None:
    filled(tier)
    server.client.zrem(USED, key_of(1).digest)
    tier._index.rebuild()
    assert {row.digest for row in tier.rows()} == {key_of(number).digest for number in range(3)}


def test_records_that_the_server_evicted_leave_the_index(server: Server, tier: RedisTier) -> None:
    filled(tier)
    assert len(tier.rows()) == 3
    server.client.delete(key_in(server, 0), key_in(server, 1))
    assert read(tier, key_of(0).digest) is None
    assert {row.digest for row in tier.rows()} == {key_of(1).digest, key_of(2).digest}
    tier._index.rebuild()
    assert [row.digest for row in tier.rows()] == [key_of(2).digest]
    assert server.client.zrange(HITS, 0, -1) == [key_of(2).digest]


def test_f8_what_is_no_record_gets_a_minute_to_live(server: Server, tier: RedisTier) -> None:
    filled(tier, 2, 2 * PIECE_BYTES)
    server.client.hdel(key_in(server, 0), "m")
    strays = [f"vkv:{{{key_of(5).hex}}}:m", f"vkv:{{{key_of(5).hex}}}:{'ab' * 8}", "vkv:{nonsense}"]
    for stray in strays:
        server.client.set(stray, b"left by somebody")
    server.client.set("another:program", b"not ours")
    server.client.set(f"vkv:{{{key_of(6).hex}}}:{'cd' * 8}", b"being written", ex=30)
    tier._index.rebuild()
    fresh = RedisTier(server.url, timeout=5.0)
    assert [row.digest for row in fresh.rows()] == [key_of(1).digest]
    fresh._index.rebuild()
    assert all(0 < server.client.ttl(key) <= 60 for key in (*strays, key_in(server, 0)))
    assert server.client.ttl("another:program") == -1
    assert server.client.ttl(f"vkv:{{{key_of(6).hex}}}:{'cd' * 8}") <= 30
    assert server.client.ttl(key_in(server, 1)) == -1
    fresh.close()


def test_a_record_without_its_manifest_is_a_miss_and_can_be_stored_again(
    server: Server, tier: RedisTier
) -> None:
    filled(tier, 1)
    server.client.hdel(key_in(server, 0), "m")
    assert read(tier, key_of(0).digest) is None
    tier.put(record_of(0), NOW, never_held)
    found = read(tier, key_of(0).digest)
    assert found is not None and content(found) == content(record_of(0))
    assert server.client.ttl(key_in(server, 0)) == -1


@pytest.mark.parametrize("key", [USED, HITS])
@pytest.mark.parametrize("kind", ["string", "hash", "list", "set"])
def test_m7_an_index_key_of_another_type_is_replaced(
    server: Server, tier: RedisTier, key: str, kind: str
) -> None:
    filled(tier)
    server.client.delete(key)
    make: dict[str, Any] = {
        "string": lambda: server.client.set(key, b"garbage"),
        "hash": lambda: server.client.hset(key, "a", "b"),
        "list": lambda: server.client.rpush(key, b"a"),
        "set": lambda: server.client.sadd(key, b"a"),
    }
    make[kind]()
    fresh = RedisTier(server.url, timeout=5.0)
    assert fresh.stats().entries == 3
    assert {row.digest for row in fresh.rows()} == {key_of(number).digest for number in range(3)}
    fresh.put(record_of(5), NOW, never_held)
    fresh.touch(key_of(5).digest, NOW + 5)
    fresh.flush()
    assert fresh.delete(key_of(5).digest)
    assert fresh.problems() == ()
    fresh.close()


@pytest.mark.parametrize("work", ["put", "delete", "flush", "rows", "stats"])
def test_m7_every_call_copes_with_an_index_of_another_type(
    server: Server, tier: RedisTier, work: str
) -> None:
    filled(tier)
    tier.touch(key_of(0).digest, NOW + 50)
    for key in (USED, HITS):
        server.client.delete(key)
        server.client.set(key, b"garbage")
    calls: dict[str, Any] = {
        "put": lambda: tier.put(record_of(8), NOW, never_held),
        "delete": lambda: tier.delete(key_of(2).digest),
        "flush": tier.flush,
        "rows": tier.rows,
        "stats": tier.stats,
    }
    calls[work]()
    expected = {"put": {0, 1, 2, 8}, "delete": {0, 1}}.get(work, {0, 1, 2})
    assert {row.digest for row in tier.rows()} == {key_of(number).digest for number in expected}


def test_m7_garbage_among_the_members_is_dropped(server: Server, tier: RedisTier) -> None:
    filled(tier)
    garbage = [b"", b"x", b"\xff" * 31, b"y" * 33, os.urandom(32), "Ünïcode".encode()]
    server.client.zadd(USED, dict.fromkeys(garbage, 5.0))
    server.client.zadd(USED, {key_of(0).digest: "+inf", key_of(1).digest: "-inf"})
    server.client.zadd(HITS, {key_of(0).digest: "+inf", key_of(1).digest: -3.5})
    fresh = RedisTier(server.url, timeout=5.0)
    assert {row.digest for row in fresh.rows()} == {key_of(number).digest for number in range(3)}
    assert all(abs(row.last_used) < 1e12 and 0 <= row.hits < 1e12 for row in fresh.rows())
    assert not set(garbage) & set(server.client.zrange(USED, 0, -1))
    fresh.close()


@pytest.mark.parametrize("kind", ["string", "list", "zset"])
def test_m7_a_record_of_another_type_is_rejected_removed_and_replaced(
    server: Server, tier: RedisTier, kind: str
) -> None:
    filled(tier, 1)
    key = key_in(server, 0)
    server.client.delete(key)
    make: dict[str, Any] = {
        "string": lambda: server.client.set(key, b"garbage"),
        "list": lambda: server.client.rpush(key, b"a"),
        "zset": lambda: server.client.zadd(key, {b"a": 1}),
    }
    make[kind]()
    store = assemble([tier], BlobCodec(), 0)
    with store.entries.fetch(key_of(0), lambda: entry_of(0)) as fetched:
        assert fetched.outcome == "corrupt"
    store.entries.flush(10)
    assert tier.stats().rejected == {"corrupt": 1}
    found = read(tier, key_of(0).digest)
    assert found is not None and found.payload == record_of(0).payload
    store.entries.close()


def test_m7_a_record_of_another_type_leaves_the_listing_and_the_server(
    server: Server, tier: RedisTier
) -> None:
    filled(tier, 2)
    key = key_in(server, 0)
    server.client.delete(key)
    server.client.set(key, b"garbage")
    fresh = RedisTier(server.url, timeout=5.0)
    assert [row.digest for row in fresh.rows()] == [key_of(1).digest]
    assert kept(server) == [key_in(server, 1).encode()]
    fresh.close()


def test_a_damaged_manifest_is_removed_when_it_is_listed(server: Server, tier: RedisTier) -> None:
    filled(tier, 1, 2 * PIECE_BYTES)
    key = key_in(server, 0)
    head = bytearray(server.client.hget(key, "m"))
    head[40] ^= 1
    server.client.hset(key, "m", bytes(head))
    fresh = RedisTier(server.url, timeout=5.0)
    assert fresh.rows() == []
    assert fresh.stats().rejected == {"corrupt": 1}
    assert kept(server) == []
    fresh.close()


def test_the_manifest_of_another_record_is_removed_when_it_is_listed(server: Server, tier: RedisTier) -> None:
    filled(tier, 2)
    server.client.hset(key_in(server, 0), "m", server.client.hget(key_in(server, 1), "m"))
    fresh = RedisTier(server.url, timeout=5.0)
    assert [row.digest for row in fresh.rows()] == [key_of(1).digest]
    fresh.close()


def test_the_index_is_compared_with_the_records_from_time_to_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.tiers.redis.tier._CHORE_SECONDS", 0.01)
    monkeypatch.setattr("store.tiers.redis.tier._REBUILD_SECONDS", 0.02)
    tier = RedisTier(server.url, timeout=5.0)
    filled(tier)
    server.client.zrem(USED, key_of(1).digest)
    pause = threading.Event()
    for _ in range(500):
        if server.client.zscore(USED, key_of(1).digest) is not None:
            break
        pause.wait(0.01)
    assert server.client.zscore(USED, key_of(1).digest) == record_of(1).manifest.info.created
    tier.close()


def test_a_use_of_a_record_that_was_never_listed_counts(server: Server, tier: RedisTier) -> None:
    filled(tier, 1)
    fresh = RedisTier(server.url, timeout=5.0)
    assert read(fresh, key_of(0).digest) is not None
    fresh.touch(key_of(0).digest, NOW + 70)
    fresh.flush()
    assert server.client.zscore(USED, key_of(0).digest) == NOW + 70
    assert server.client.zscore(HITS, key_of(0).digest) == 1
    fresh.close()


def test_f8_a_server_that_evicts_by_itself_keeps_whole_records_and_serves_right_ones() -> None:
    with Server("maxmemory 24mb", "maxmemory-policy allkeys-lru") as server:
        tier = RedisTier(server.url, timeout=5.0)
        for number in range(12):
            with suppress(TierFull):  # it may evict what is just being written
                tier.put(record_of(number, 4 * PIECE_BYTES), NOW + number, never_held)
        found = [read(tier, key_of(number).digest) for number in range(12)]
        assert tier.stats().rejected == {}
        held = [number for number, record in enumerate(found) if record is not None]
        assert 2 <= len(held) < 12
        for number in held:
            assert content(found[number] or record_of(0)) == content(record_of(number, 4 * PIECE_BYTES))
        tier._index.rebuild()
        assert {row.digest for row in tier.rows()} == {key_of(number).digest for number in held}
        tier.close()


def test_one_row_is_asked_for_without_a_listing(
    server: Server, tier: RedisTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that pins its image asks for a row; a listing may take longer than a request should wait."""
    filled(tier)
    tier.touch(key_of(1).digest, NOW + 40)
    tier.flush()
    fresh = RedisTier(server.url, timeout=5.0)
    monkeypatch.setattr(fresh._index, "refresh", lambda: pytest.fail("a listing"))
    row = fresh.row(key_of(1).digest)
    assert row is not None and (row.last_used, row.hits, row.bytes) == (NOW + 40, 1, record_of(1).nbytes)
    assert fresh.row(key_of(9).digest) is None
    fresh.close()
