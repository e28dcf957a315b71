"""Kinds of servers: clustered, old, guarded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from store.errors import TierUnavailable
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, kept
from tests.store.samples import (
    content,
    key_of,
    read,
    record_of,
)

MIB = 1 << 20
NOW = 2000.0


class TestKinds:
    def test_a_cluster(self) -> None:
        with Server(cluster=True) as server:
            tier = RedisTier(server.url, 8 * MIB, cluster=True, timeout=5.0)
            for number in range(6):
                tier.put(record_of(number, 2 * PIECE_BYTES), NOW + number, never_held)
            held = [number for number in range(6) if tier.contains(key_of(number).digest)]
            assert held == [3, 4, 5]
            for number in held:
                found = read(tier, key_of(number).digest)
                assert found is not None and content(found) == content(record_of(number, 2 * PIECE_BYTES))
            tier.touch(key_of(3).digest, NOW + 100)
            tier.flush()
            assert tier.stats().bytes_physical > 0
            again = RedisTier(server.url, 8 * MIB, cluster=True, timeout=5.0)
            assert {row.digest: row for row in again.rows()} == {row.digest: row for row in tier.rows()}
            for number in held:
                assert tier.delete(key_of(number).digest)
            assert kept(server) == []
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

    def test_a_user_who_may_do_what_the_document_lists_and_no_more(self) -> None:
        text = (Path(__file__).parents[4] / "docs" / "store.md").read_text()
        (listed,) = re.findall(r"A user of its own needs (.*?), and `~vkv:\*`", text)
        commands = [f"+{name.lower()}" for name in re.findall(r"`(\w+)`", listed)]
        assert len(commands) > 15
        with Server() as server:
            server.client.acl_setuser(
                "conduit", enabled=True, passwords=["+secret"], keys=["vkv:*"], commands=commands
            )
            url = f"redis://conduit:secret@127.0.0.1:{server.port}"
            tier = RedisTier(url, 8 * MIB, timeout=5.0)
            for number in range(6):
                tier.put(record_of(number, 2 * PIECE_BYTES), NOW + number, never_held)
            tier.touch(key_of(5).digest, NOW + 10)
            tier.flush()
            server.client.set("vkv:{index}:hits", b"garbage")
            server.client.set("vkv:{stray}", b"garbage")
            tier._index.rebuild()
            tier.put(record_of(5), NOW, never_held, replace=True)
            assert read(tier, key_of(5).digest) is not None
            assert {row.digest for row in tier.rows()} == {key_of(number).digest for number in (3, 4, 5)}
            assert tier.delete(key_of(5).digest) and tier.stats().bytes_physical > 0
            assert 0 < server.client.ttl("vkv:{stray}") <= 60
            tier.close()

    def test_a_wrong_password_costs_the_tier_only(self) -> None:
        with Server() as server:
            server.client.config_set("requirepass", "another")
            tier = RedisTier(server.url, timeout=5.0)
            with pytest.raises(TierUnavailable):
                tier.put(record_of(1), NOW, never_held)
            tier.close()
