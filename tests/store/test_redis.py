"""The shared tier on real servers: down, slow, full, evicting, restarted, clustered, old."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from store.errors import Rejected, TierFull, TierUnavailable
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiered import TieredStore
from store.tiers.memory import MemoryTier
from store.tiers.redis.breaker import Breaker
from store.tiers.redis.link import RedisLink
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, free_port, shared_server
from tests.store.samples import (
    BlobCodec,
    Clock,
    content,
    decoded_of,
    entry_of,
    key_of,
    read,
    record_of,
    unused,
)

MIB = 1 << 20
NOW = 2000.0


@pytest.fixture
def server() -> Iterator[Server]:
    server = shared_server()
    server.flush()
    yield server
    server.flush()


@pytest.fixture
def tier(server: Server) -> Iterator[RedisTier]:
    tier = RedisTier(server.url, timeout=5.0)
    yield tier
    tier.close()


def keys_of(server: Server, number: int) -> list[bytes]:
    return list(server.client.scan_iter(f"vkv:{{{key_of(number).hex}}}:*"))


class TestLayout:
    def test_a_record_lies_in_one_slot_and_leaves_nothing_when_removed(
        self, server: Server, tier: RedisTier
    ) -> None:
        tier.put(record_of(1, 3 * PIECE_BYTES), NOW, never_held)
        keys = keys_of(server, 1)
        assert len(keys) == 4
        assert all(b"{" + key_of(1).hex.encode() + b"}" in key for key in keys)
        assert tier.delete(key_of(1).digest)
        assert server.client.dbsize() == 0

    @pytest.mark.parametrize("dies_at", ["zadd", "set"])
    def test_what_a_dead_writer_leaves_goes_by_itself(
        self, server: Server, tier: RedisTier, dies_at: str
    ) -> None:
        record = record_of(1, 2 * PIECE_BYTES)

        class Dies:
            def __init__(self, client: object) -> None:
                self.client = client

            def __getattr__(self, name: str) -> object:
                if name == dies_at:
                    raise KeyboardInterrupt
                return getattr(self.client, name)

        with pytest.raises(KeyboardInterrupt):
            tier._link.run(lambda client: tier._write(Dies(client), record, NOW))
        left = keys_of(server, 1)
        assert len(left) == 2 and all(server.client.ttl(key) > 0 for key in left)
        assert read(tier, record.digest) is None
        tier.put(record, NOW, never_held)
        found = read(tier, record.digest)
        assert found is not None and content(found) == content(record)

    def test_a_whole_record_does_not_expire(self, server: Server, tier: RedisTier) -> None:
        tier.put(record_of(1, 2 * PIECE_BYTES), NOW, never_held)
        assert [server.client.ttl(key) for key in keys_of(server, 1)] == [-1, -1, -1]

    def test_two_machines_that_write_replace_and_remove_do_not_mix_records(self, server: Server) -> None:
        tiers = [RedisTier(server.url, timeout=5.0) for _ in range(3)]
        records = [record_of(1, 2 * PIECE_BYTES), record_of(1, 3 * PIECE_BYTES)]
        wrong: list[BaseException] = []

        def work(mine: int) -> None:
            try:
                for turn in range(8):
                    tiers[mine].put(records[(mine + turn) % 2], NOW, never_held, replace=True)
                    found = read(tiers[mine], key_of(1).digest)
                    assert found is None or content(found) in [content(record) for record in records]
                    if turn % 3 == mine:
                        tiers[mine].delete(key_of(1).digest)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        persistent = [key for key in keys_of(server, 1) if server.client.ttl(key) == -1]
        assert len(persistent) in (0, 3, 4)
        for tier in tiers:
            tier.close()

    def test_other_machines_see_what_one_writes(self, server: Server, tier: RedisTier) -> None:
        other = RedisTier(server.url, timeout=5.0)
        assert other.rows() == []
        tier.put(record_of(1), NOW, never_held)
        assert [row.digest for row in other.rows()] == [key_of(1).digest]
        other.delete(key_of(1).digest)
        assert tier.rows() == []
        other.close()

    def test_the_index_forgets_what_the_server_evicted(self, server: Server, tier: RedisTier) -> None:
        for number, when in ((1, NOW), (2, time.time())):
            tier.put(record_of(number), when, never_held)
            server.client.delete(f"vkv:{{{key_of(number).hex}}}:m")
            assert read(tier, key_of(number).digest) is None
        assert tier.rows() == []
        assert server.client.zrange("vkv:{index}:used", 0, -1) == [key_of(2).digest]

    def test_a_damaged_manifest_is_removed_when_it_is_listed(self, server: Server, tier: RedisTier) -> None:
        tier.put(record_of(1, 2 * PIECE_BYTES), NOW, never_held)
        key = f"vkv:{{{key_of(1).hex}}}:m"
        head = bytearray(server.client.get(key))
        head[40] ^= 1
        server.client.set(key, bytes(head))
        fresh = RedisTier(server.url, timeout=5.0)
        assert fresh.rows() == []
        assert fresh.stats().rejected == {"corrupt": 1}
        assert server.client.dbsize() == 0
        fresh.close()


class TestDamage:
    def test_e7_zeroed_bytes_in_a_value_are_a_counted_miss(self, server: Server, tier: RedisTier) -> None:
        store = TieredStore([tier], BlobCodec(), MIB)
        tier.put(record_of(2, 2 * PIECE_BYTES), NOW, never_held)
        piece = next(key for key in keys_of(server, 2) if key.endswith(b":1"))
        server.client.setrange(piece, 1000, bytes(64))
        with store.fetch(key_of(2), lambda: entry_of(2, 2 * PIECE_BYTES)) as fetched:
            assert fetched.outcome == "corrupt"
            assert bytes(fetched.entry.data) == decoded_of(2, 2 * PIECE_BYTES)
        store.flush(10)
        found = read(tier, key_of(2).digest)
        assert found is not None and found.payload.tobytes() == decoded_of(2, 2 * PIECE_BYTES)
        assert tier.stats().rejected == {"corrupt": 1}
        store.close()

    def test_a_torn_record_is_a_miss_and_is_cleaned_up(self, server: Server, tier: RedisTier) -> None:
        store = TieredStore([tier], BlobCodec(), 0)
        tier.put(record_of(1, 4 * PIECE_BYTES), NOW, never_held)
        server.client.delete(next(key for key in keys_of(server, 1) if key.endswith(b":2")))
        with store.fetch(key_of(1), lambda: entry_of(1, 4 * PIECE_BYTES), "read") as fetched:
            assert fetched.outcome == "corrupt" and "torn" in fetched.reason
        store.flush(10)
        assert server.client.dbsize() == 0
        store.close()

    def test_a_server_that_evicts_on_its_own_tears_records_and_none_is_served(self) -> None:
        with Server("maxmemory 24mb", "maxmemory-policy allkeys-lru") as server:
            tier = RedisTier(server.url, timeout=5.0)
            store = TieredStore([tier], BlobCodec(), 0)
            outcomes = []
            for number in range(12):
                tier.put(record_of(number, 4 * PIECE_BYTES), NOW + number, never_held)
            for number in range(12):
                with store.fetch(
                    key_of(number), lambda n=number: entry_of(n, 4 * PIECE_BYTES), "read"
                ) as fetched:  # type: ignore[misc]
                    assert bytes(fetched.entry.data) == decoded_of(number, 4 * PIECE_BYTES)
                    outcomes.append(fetched.outcome)
            assert "hit" in outcomes and {"miss", "corrupt"} & set(outcomes)
            store.close()


class TestOutOfMemory:
    def test_e14_a_full_server_skips_the_write_and_leaves_no_pieces(self) -> None:
        with Server("maxmemory 16mb", "maxmemory-policy noeviction") as server:
            tier = RedisTier(server.url, timeout=5.0)
            store = TieredStore([tier], BlobCodec(), 0)
            for number in range(6):
                with store.fetch(key_of(number), lambda n=number: entry_of(n, 4 * PIECE_BYTES)) as fetched:  # type: ignore[misc]
                    assert fetched.outcome == "miss"
                store.flush(10)
            stats = store.stats()
            assert stats.writes_dropped["server_full"] > 0
            assert not stats.degraded
            kept = [number for number in range(6) if tier.contains(key_of(number).digest)]
            assert kept
            persistent = [
                key for key in server.client.scan_iter("vkv:{?????*") if not key.startswith(b"vkv:{index}")
            ]
            assert len(persistent) == 5 * len(kept)
            with store.fetch(key_of(kept[0]), unused) as fetched:
                assert fetched.tier == "redis"
            store.close()


class TestAway:
    def test_e13_starts_and_answers_without_a_server(self) -> None:
        tier = RedisTier(f"redis://127.0.0.1:{free_port()}")
        store = TieredStore([tier], BlobCodec(), 0)
        for number in range(5):
            with store.fetch(key_of(number), lambda n=number: entry_of(n)) as fetched:  # type: ignore[misc]
                assert fetched.outcome == "miss" and "redis" in fetched.reason
        store.flush(10)
        stats = store.stats()
        assert not stats.tiers[0].available
        assert any("redis does not answer" in problem for problem in stats.degraded)
        store.close()

    def test_e13_a_server_that_hangs_is_given_up_and_found_again(self) -> None:
        with Server() as server:
            clock = Clock(0.0)
            tier = RedisTier(server.url, timeout=0.2)
            tier._link = RedisLink(server.url, False, 0.2, Breaker(2, 10.0, clock))
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

    def test_a_server_that_trickles_is_not_waited_for(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tier = RedisTier(server.url, timeout=5.0)
        tier.put(record_of(1, 6 * PIECE_BYTES), NOW, never_held)
        ticks = iter(range(0, 10_000, 100))
        monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
        with pytest.raises(TierUnavailable) as caught:
            read(tier, key_of(1).digest)
        assert caught.value.reason == "slow"
        monkeypatch.undo()
        tier.close()

    def test_a_faster_tier_goes_on_without_it(self) -> None:
        store = TieredStore([MemoryTier(MIB), RedisTier(f"redis://127.0.0.1:{free_port()}")], BlobCodec(), 0)
        store.fetch(key_of(1), lambda: entry_of(1)).release()
        store.flush(10)
        with store.fetch(key_of(1), unused) as fetched:
            assert fetched.tier == "memory"
        store.close()

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
        monkeypatch.setattr("store.tiers.redis.tier._WRITE_DOWN_SECONDS", 0.01)
        tier = RedisTier(server.url, timeout=5.0)
        tier.put(record_of(1), NOW, never_held)
        tier.touch(key_of(1).digest, NOW + 1)
        pause = threading.Event()
        for _ in range(500):
            if server.client.zscore("vkv:{index}:used", key_of(1).digest) == NOW + 1:
                break
            pause.wait(0.01)
        assert server.client.hget("vkv:{index}:hits", key_of(1).digest) == b"1"
        tier.close()


class TestKinds:
    def test_a_cluster(self) -> None:
        with Server(cluster=True) as server:
            tier = RedisTier(server.url, 8 * MIB, cluster=True, timeout=5.0)
            for number in range(6):
                tier.put(record_of(number, 2 * PIECE_BYTES), NOW + number, never_held)
            kept = [number for number in range(6) if tier.contains(key_of(number).digest)]
            assert kept == [3, 4, 5]
            for number in kept:
                found = read(tier, key_of(number).digest)
                assert found is not None and content(found) == content(record_of(number, 2 * PIECE_BYTES))
            tier.touch(key_of(3).digest, NOW + 100)
            tier.flush()
            assert tier.stats().bytes_physical > 0
            again = RedisTier(server.url, 8 * MIB, cluster=True, timeout=5.0)
            assert {row.digest: row for row in again.rows()} == {row.digest: row for row in tier.rows()}
            for number in kept:
                assert tier.delete(key_of(number).digest)
            assert server.client.dbsize() == 0
            again.close()
            tier.close()

    def test_a_server_without_resp3(self) -> None:
        with Server('rename-command HELLO ""') as server:
            tier = RedisTier(server.url, timeout=5.0)
            tier.put(record_of(1, 2 * PIECE_BYTES), NOW, never_held)
            assert read(tier, key_of(1).digest) is not None
            assert [row.last_used for row in tier.rows()] == [NOW]
            tier.close()

    def test_resp3_where_there(self, server: Server, tier: RedisTier) -> None:
        tier.put(record_of(1), NOW, never_held)
        assert "3" in [client["resp"] for client in server.client.client_list()]

    def test_a_wrong_password_costs_the_tier_only(self) -> None:
        with Server() as server:
            server.client.config_set("requirepass", "another")
            tier = RedisTier(server.url, timeout=5.0)
            with pytest.raises(TierUnavailable):
                tier.put(record_of(1), NOW, never_held)
            tier.close()


class TestBreaker:
    def test_opens_rests_and_closes(self) -> None:
        clock = Clock(0.0)
        breaker = Breaker(2, 5.0, clock)
        breaker.failed()
        assert breaker.admits() and not breaker.open
        breaker.failed()
        assert breaker.open and not breaker.admits()
        clock.now = 5.0
        assert breaker.admits()
        assert not breaker.admits()
        breaker.failed()
        clock.now = 9.0
        assert not breaker.admits()
        clock.now = 10.0
        assert breaker.admits()
        breaker.worked()
        assert not breaker.open and breaker.admits() and breaker.admits()


def test_full_is_not_unavailable(server: Server) -> None:
    tier = RedisTier(server.url, 1000, timeout=5.0)
    with pytest.raises(TierFull):
        tier.put(record_of(1, 4000), NOW, never_held)
    assert tier.problems() == ()
    tier.close()


def test_rejections_do_not_open_the_breaker(server: Server, tier: RedisTier) -> None:
    tier.put(record_of(1), NOW, never_held)
    server.client.setrange(f"vkv:{{{key_of(1).hex}}}:m", 20, b"xxxx")
    for _ in range(5):
        with pytest.raises(Rejected):
            read(tier, key_of(1).digest)
    assert tier.stats().available
