"""Records in the server: what lies where, who may write at once, what is left behind."""

from __future__ import annotations

import os
import threading

import pytest

from store.errors import TierError, TierFull, TierUnavailable
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.redis.remote import Draft
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, kept, key_in
from tests.store.samples import content, key_of, read, record_of

NOW = 2000.0


def test_a_record_is_one_key_and_leaves_nothing_when_removed(server: Server, tier: RedisTier) -> None:
    tier.put(record_of(1, 3 * PIECE_BYTES), NOW, never_held)
    assert kept(server) == [b"vkv:{" + key_of(1).hex.encode() + b"}"]
    assert server.client.hlen(key_in(server, 1)) == 4
    assert tier.delete(key_of(1).digest)
    assert kept(server) == []
    assert server.client.dbsize() == 0


def test_a_whole_record_does_not_expire(server: Server, tier: RedisTier) -> None:
    tier.put(record_of(1, 2 * PIECE_BYTES), NOW, never_held)
    assert server.client.ttl(key_in(server, 1)) == -1


class Dies:
    """A client whose process ends at the `count`th command of a name."""

    def __init__(self, client: object, name: str, count: int) -> None:
        self._client = client
        self._name = name
        self._left = count

    def __getattr__(self, name: str) -> object:
        if name == self._name:
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt
        return getattr(self._client, name)


@pytest.mark.parametrize(
    ("command", "count"), [("pipeline", 2), ("pipeline", 3), ("hlen", 1), ("rename", 1), ("persist", 1)]
)
def test_what_a_dead_writer_leaves_goes_by_itself(
    server: Server, tier: RedisTier, command: str, count: int
) -> None:
    record = record_of(1, 6 * PIECE_BYTES)

    def write(client: object) -> None:
        dying, draft = Dies(client, command, count), Draft(record)
        draft.send(dying)
        draft.publish(dying)

    with pytest.raises(KeyboardInterrupt):
        tier._link.run(write)
    (left,) = kept(server)
    assert 0 < server.client.ttl(left) <= 60
    assert command == "persist" or read(tier, record.digest) is None
    tier.put(record, NOW, never_held, replace=True)
    found = read(tier, record.digest)
    assert found is not None and content(found) == content(record)
    assert server.client.ttl(key_in(server, 1)) == -1


@pytest.mark.parametrize(
    "error", [OSError("broken pipe"), ValueError("odd"), MemoryError(), TierFull("server_full")]
)
def test_f6_ten_failed_puts_leave_nothing(
    server: Server, tier: RedisTier, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sound = Draft._put
    calls = iter(range(1000))

    def fails_late(draft: Draft, client: object, fields: dict[str, object]) -> None:
        if next(calls) % 3 == 2:
            raise error
        sound(draft, client, fields)

    monkeypatch.setattr(Draft, "_put", fails_late)
    tier._link._breaker._limit = 1000
    record = record_of(1, 5 * PIECE_BYTES)
    for _ in range(10):
        with pytest.raises(TierError):
            tier.put(record, NOW, never_held)
    assert kept(server) == []
    assert tier.stats().entries == 0


def test_a_draft_that_the_server_evicts_is_not_published(
    server: Server, tier: RedisTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Draft._put

    def evicted_before(draft: Draft, client: object, fields: dict[str, object]) -> None:
        server.client.unlink(draft.key)
        sound(draft, client, fields)

    monkeypatch.setattr(Draft, "_put", evicted_before)
    with pytest.raises(TierFull, match="server_full"):
        tier.put(record_of(1, 2 * PIECE_BYTES), NOW, never_held)
    assert kept(server) == []


def test_a_failed_replacement_leaves_what_was_there(
    server: Server, tier: RedisTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = record_of(1)
    tier.put(old, NOW, never_held)

    def fail(draft: Draft, client: object) -> None:
        raise OSError

    monkeypatch.setattr(Draft, "publish", fail)
    with pytest.raises(TierUnavailable):
        tier.put(record_of(1, 2 * PIECE_BYTES), NOW, never_held, replace=True)
    found = read(tier, old.digest)
    assert found is not None and content(found) == content(old)
    assert len(kept(server)) == 1


def test_two_machines_that_write_replace_and_remove_do_not_mix_records(server: Server) -> None:
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
    left = kept(server)
    assert left in ([], [b"vkv:{" + key_of(1).hex.encode() + b"}"])
    assert not left or server.client.hlen(left[0]) in (3, 4)
    for tier in tiers:
        tier.close()


def test_a_record_replaced_between_two_windows_is_a_miss_not_damage(
    server: Server, tier: RedisTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.put(record_of(1, 6 * PIECE_BYTES), NOW, never_held)
    other = RedisTier(server.url, timeout=5.0)
    asked: list[object] = []

    class Interrupted:
        def __init__(self, client: object) -> None:
            self._client = client

        def __getattr__(self, name: str) -> object:
            if name == "hmget":
                asked.append(name)
                if len(asked) == 2:
                    other.put(record_of(1, 6 * PIECE_BYTES), NOW, never_held, replace=True)
            return getattr(self._client, name)

    tier._link._client = Interrupted(tier._link._client)
    assert read(tier, key_of(1).digest) is None
    assert tier.stats().rejected == {} and tier.contains(key_of(1).digest)
    assert read(other, key_of(1).digest) is not None
    other.close()


def test_other_machines_see_what_one_writes(server: Server, tier: RedisTier) -> None:
    other = RedisTier(server.url, timeout=5.0)
    assert other.rows() == []
    tier.put(record_of(1), NOW, never_held)
    assert [row.digest for row in other.rows()] == [key_of(1).digest]
    tier.touch(key_of(1).digest, NOW + 50)
    tier.flush()
    assert [row.last_used for row in other.rows()] == [NOW + 50]
    other.delete(key_of(1).digest)
    assert tier.rows() == []
    other.close()


def test_drafts_of_two_writers_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(1)
    assert Draft(record).key != Draft(record).key
    monkeypatch.setattr(os, "urandom", lambda count: b"\x07" * count)
    assert Draft(record).key == f"vkv:{{{record.digest.hex()}}}:{'07' * 8}"
