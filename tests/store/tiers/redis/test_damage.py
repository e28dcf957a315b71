"""Records that somebody damaged, and a server that evicts or is full."""

from __future__ import annotations

import pytest

from store.errors import Rejected, TierFull
from store.open import assemble
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, kept, key_in
from tests.store.samples import (
    BlobCodec,
    decoded_of,
    entry_of,
    key_of,
    read,
    record_of,
    unused,
)

MIB = 1 << 20
NOW = 2000.0


class TestDamage:
    def test_e7_zeroed_bytes_in_a_value_are_a_counted_miss(self, server: Server, tier: RedisTier) -> None:
        store = assemble([tier], BlobCodec(), MIB)
        tier.put(record_of(2, 2 * PIECE_BYTES), NOW, never_held)
        field = next(field for field in server.client.hkeys(key_in(server, 2)) if field.endswith(b":1"))
        piece = bytearray(server.client.hget(key_in(server, 2), field))
        piece[1000:1064] = bytes(64)
        server.client.hset(key_in(server, 2), field, bytes(piece))
        with store.entries.fetch(key_of(2), lambda: entry_of(2, 2 * PIECE_BYTES)) as fetched:
            assert fetched.outcome == "corrupt"
            assert bytes(fetched.entry.data) == decoded_of(2, 2 * PIECE_BYTES)
        store.entries.flush(10)
        found = read(tier, key_of(2).digest)
        assert found is not None and found.payload.tobytes() == decoded_of(2, 2 * PIECE_BYTES)
        assert tier.stats().rejected == {"corrupt": 1}
        store.entries.close()

    def test_a_torn_record_is_a_miss_and_is_cleaned_up(self, server: Server, tier: RedisTier) -> None:
        store = assemble([tier], BlobCodec(), 0)
        tier.put(record_of(1, 4 * PIECE_BYTES), NOW, never_held)
        fields = server.client.hkeys(key_in(server, 1))
        server.client.hdel(key_in(server, 1), next(field for field in fields if field.endswith(b":2")))
        with store.entries.fetch(key_of(1), lambda: entry_of(1, 4 * PIECE_BYTES), "read") as fetched:
            assert fetched.outcome == "corrupt" and "torn" in fetched.reason
        store.entries.flush(10)
        assert kept(server) == []
        assert tier.stats().rejected == {"torn": 1}
        store.entries.close()


class TestOutOfMemory:
    def test_e14_a_full_server_skips_the_write_and_leaves_no_pieces(self) -> None:
        with Server("maxmemory 16mb", "maxmemory-policy noeviction") as server:
            tier = RedisTier(server.url, timeout=5.0)
            store = assemble([tier], BlobCodec(), 0)
            for number in range(6):
                with store.entries.fetch(
                    key_of(number), lambda n=number: entry_of(n, 4 * PIECE_BYTES)
                ) as fetched:  # type: ignore[misc]
                    assert fetched.outcome == "miss"
                store.entries.flush(10)
            stats = store.admin.stats()
            assert stats.writes_dropped["server_full"] > 0
            assert not stats.degraded
            held = [number for number in range(6) if tier.contains(key_of(number).digest)]
            assert held
            assert set(kept(server)) == {key_in(server, number).encode() for number in held}
            with store.entries.fetch(key_of(held[0]), unused) as fetched:
                assert fetched.tier == "redis"
            store.entries.close()


def test_full_is_not_unavailable(server: Server) -> None:
    tier = RedisTier(server.url, 1000, timeout=5.0)
    with pytest.raises(TierFull):
        tier.put(record_of(1, 4000), NOW, never_held)
    assert tier.problems() == ()
    tier.close()


def test_rejections_do_not_open_the_breaker(server: Server, tier: RedisTier) -> None:
    tier.put(record_of(1), NOW, never_held)
    head = server.client.hget(key_in(server, 1), "m")
    server.client.hset(key_in(server, 1), "m", head[:20] + b"xxxx" + head[24:])
    for _ in range(5):
        with pytest.raises(Rejected):
            read(tier, key_of(1).digest)
    assert tier.stats().available
