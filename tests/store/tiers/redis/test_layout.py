"""Keys in the server: what lies where, who may write at once, what is left behind."""

from __future__ import annotations

import threading
import time

import pytest

from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, keys_of
from tests.store.samples import (
    content,
    key_of,
    read,
    record_of,
)

NOW = 2000.0


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
