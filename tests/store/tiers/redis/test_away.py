"""A server that is away, hangs, trickles or comes back."""

from __future__ import annotations

import threading

import pytest

from store.errors import TierUnavailable
from store.open import assemble
from store.residency.eviction import never_held
from store.tiers.memory import MemoryTier
from store.tiers.redis.breaker import Breaker
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, free_port
from tests.store.samples import (
    BlobCodec,
    Clock,
    entry_of,
    key_of,
    read,
    record_of,
    unused,
)

MIB = 1 << 20
NOW = 2000.0


class TestAway:
    def test_e13_starts_and_answers_without_a_server(self) -> None:
        tier = RedisTier(f"redis://127.0.0.1:{free_port()}")
        store = assemble([tier], BlobCodec(), 0)
        for number in range(5):
            with store.entries.fetch(key_of(number), lambda n=number: entry_of(n)) as fetched:  # type: ignore[misc]
                assert fetched.outcome == "miss" and "redis" in fetched.reason
        store.entries.flush(10)
        stats = store.admin.stats()
        assert not stats.tiers[0].available
        assert any("redis does not answer" in problem for problem in stats.degraded)
        store.entries.close()

    def test_e13_a_server_that_hangs_is_given_up_and_found_again(self) -> None:
        with Server() as server:
            clock = Clock(0.0)
            tier = RedisTier(server.url, timeout=0.2)
            tier._link._breaker = Breaker(2, 10.0, clock)
            tier.put(record_of(1), NOW, never_held)
            server.pause()
            asked = 0
            for _ in range(20):
                with pytest.raises(TierUnavailable) as caught:
                    read(tier, key_of(1).digest)
                asked += caught.value.reason == "timeout"
            assert asked == 2
            assert not tier.stats().available
            server.resume()
            with pytest.raises(TierUnavailable, match="breaker_open"):
                read(tier, key_of(1).digest)
            clock.now = 11.0
            assert read(tier, key_of(1).digest) is not None
            assert tier.stats().available and tier.problems() == ()
            tier.close()

    def test_e16_a_server_that_was_restarted_is_used_again(self) -> None:
        first = Server()
        port = first.port
        tier = RedisTier(first.url, timeout=5.0)
        tier.put(record_of(1), NOW, never_held)
        first.stop()
        with pytest.raises(TierUnavailable):
            read(tier, key_of(1).digest)
        with Server(port=port):
            assert read(tier, key_of(1).digest) is None
            tier.put(record_of(1), NOW, never_held)
            assert read(tier, key_of(1).digest) is not None
        tier.close()

    def test_a_faster_tier_goes_on_without_it(self) -> None:
        store = assemble([MemoryTier(MIB), RedisTier(f"redis://127.0.0.1:{free_port()}")], BlobCodec(), 0)
        store.entries.fetch(key_of(1), lambda: entry_of(1)).release()
        store.entries.flush(10)
        with store.entries.fetch(key_of(1), unused) as fetched:
            assert fetched.tier == "memory"
        store.entries.close()

    def test_uses_are_lost_not_raised_when_the_server_is_away(self, server: Server) -> None:
        tier = RedisTier(server.url, timeout=0.2)
        tier.put(record_of(1), NOW, never_held)
        tier._link.close()
        tier.touch(key_of(1).digest, NOW + 1)
        tier.close()
        assert server.client.zscore("vkv:{index}:used", key_of(1).digest) == NOW

    def test_a_use_does_not_bring_a_removed_record_back(self, server: Server) -> None:
        tier, other = RedisTier(server.url, timeout=5.0), RedisTier(server.url, timeout=5.0)
        tier.put(record_of(1), NOW, never_held)
        tier.touch(key_of(1).digest, NOW + 1)
        other.delete(key_of(1).digest)
        tier.flush()
        assert server.client.zcard("vkv:{index}:used") == 0
        tier.close()
        other.close()

    def test_uses_are_written_down_without_being_asked(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("store.tiers.redis.tier._CHORE_SECONDS", 0.01)
        tier = RedisTier(server.url, timeout=5.0)
        tier.put(record_of(1), NOW, never_held)
        tier.touch(key_of(1).digest, NOW + 1)
        pause = threading.Event()
        for _ in range(500):
            if server.client.zscore("vkv:{index}:used", key_of(1).digest) == NOW + 1:
                break
            pause.wait(0.01)
        assert server.client.zscore("vkv:{index}:hits", key_of(1).digest) == 1
        tier.close()
