"""What every tier must do. A tier joins by being registered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.errors import Rejected, TierError, TierFull
from store.records.header import PIECE_BYTES
from store.records.record import RecordReader
from store.residency.eviction import POLICIES, Hold, never_held
from store.settings import StoreSettings
from store.tiers.protocol import Tier, TierKind, kinds
from tests.store.faulty import FaultyTier
from tests.store.redis_server import shared_server
from tests.store.samples import BUFFERS, content, key_of, read, record_of

MIB = 1 << 20
BUDGET = 16 * MIB
NOW = 2000.0
KINDS = kinds()
PERSISTENT = [kind for kind in KINDS if kind.persistent]


def build(kind: TierKind, directory: Path, **changes: Any) -> Tier:
    settings = StoreSettings(
        path=directory / "store",
        memory_bytes=BUDGET,
        disk_bytes=BUDGET,
        redis_url=shared_server().url,
        redis_bytes=BUDGET,
        redis_timeout=5.0,
        **changes,
    )
    tier = kind.build(settings)
    assert tier is not None
    return tier


@pytest.fixture(autouse=True)
def empty_server() -> None:
    shared_server().flush()


class TestTier:
    @pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
    def kind(self, request: pytest.FixtureRequest) -> TierKind:
        kind: TierKind = request.param
        return kind

    @pytest.fixture
    def tier(self, kind: TierKind, tmp_path: Path) -> Iterator[Tier]:
        tier = build(kind, tmp_path)
        yield tier
        tier.close()

    def test_gives_back_what_was_put(self, tier: Tier) -> None:
        records = [record_of(1), record_of(2, 3 * PIECE_BYTES), record_of(3, 2 * MIB + 4)]
        for record in records:
            tier.put(record, NOW, never_held)
        for record in records:
            found = read(tier, record.digest)
            assert found is not None
            assert content(found) == content(record)

    def test_absent_is_false(self, tier: Tier) -> None:
        digest = key_of(1).digest
        assert read(tier, digest) is None
        assert not tier.contains(digest)
        assert tier.row(digest) is None
        assert not tier.delete(digest)

    def test_delete_removes_all_traces(self, tier: Tier) -> None:
        record, other = record_of(1), record_of(2)
        tier.put(record, NOW, never_held)
        tier.put(other, NOW, never_held)
        assert tier.delete(record.digest)
        assert read(tier, record.digest) is None
        assert [row.digest for row in tier.rows()] == [other.digest]
        assert tier.stats().bytes_logical == other.nbytes

    def test_put_keeps_unless_replace(self, tier: Tier) -> None:
        old, new = record_of(1), record_of(1)
        changed = record_of(1, 2 * MIB)
        tier.put(old, NOW, never_held)
        tier.put(changed, NOW, never_held)
        assert content(read(tier, old.digest) or new) == content(old)
        tier.put(changed, NOW, never_held, replace=True)
        found = read(tier, old.digest)
        assert found is not None and content(found) == content(changed)
        assert tier.stats().bytes_logical == changed.nbytes

    def test_owns_its_bytes(self, tier: Tier) -> None:
        record = record_of(1)
        expected = content(record)
        writable = bytearray(record.payload)
        own = type(record)(record.manifest, record.head, memoryview(writable))
        tier.put(own, NOW, never_held)
        writable[:] = bytes(len(writable))
        first = read(tier, record.digest)
        assert first is not None and content(first) == expected
        first.payload[:] = bytes(first.payload.nbytes)
        second = read(tier, record.digest)
        assert second is not None and content(second) == expected

    def test_rows_tell_what_is_held(self, tier: Tier) -> None:
        record = record_of(7, tenant="other")
        tier.put(record, NOW, never_held)
        row = tier.row(record.digest)
        assert row is not None
        assert (row.digest, row.info, row.bytes) == (record.digest, record.manifest.info, record.nbytes)
        assert list(tier.rows()) == [row]

    def test_a_use_moves_recency_and_a_look_does_not(self, tier: Tier) -> None:
        record = record_of(1)
        tier.put(record, NOW, never_held)
        before = tier.row(record.digest)
        assert before is not None
        read(tier, record.digest)
        tier.contains(record.digest)
        assert tier.row(record.digest) == before
        tier.touch(record.digest, before.last_used + 50)
        after = tier.row(record.digest)
        assert after is not None
        assert (after.last_used, after.hits) == (before.last_used + 50, before.hits + 1)

    def test_budget_holds_and_the_least_recent_goes_first(self, tier: Tier) -> None:
        records = [record_of(number, 4 * MIB) for number in range(12)]
        for number, record in enumerate(records):
            tier.put(record, NOW, never_held)
            tier.touch(record.digest, 5e9 + number)
            assert tier.stats().bytes_logical <= BUDGET
        kept = [record for record in records if tier.contains(record.digest)]
        assert kept
        assert kept == records[-len(kept) :]
        assert tier.stats().evictions["budget"] == len(records) - len(kept)

    def test_m6_a_clock_that_was_a_year_ahead_once_keeps_nothing_new_out(self, tier: Tier) -> None:
        ahead = NOW + 365 * 86400
        for number in range(4):
            tier.put(record_of(number, 3 * MIB), ahead + number, never_held)
        for number in (3, 2, 1, 0):
            tier.touch(key_of(number).digest, ahead + 100 - number)
        tier.flush()
        order = [3, 2, 1, 0, *range(4, 12)]
        for number in range(4, 12):
            tier.put(record_of(number, 3 * MIB), NOW + number, never_held)
            kept = [other for other in order if tier.contains(key_of(other).digest)]
            assert kept[-1] == number
            assert kept == order[: order.index(number) + 1][-len(kept) :]
        assert 2 < len(kept) < 6

    def test_every_eviction_is_counted(self, tier: Tier) -> None:
        records = [record_of(number, 2 * MIB) for number in range(7)]
        for number, record in enumerate(records):
            tier.put(record, NOW + number, never_held)
        tier.put(record_of(9, 9 * MIB), NOW + 9, never_held)
        gone = [record for record in records if not tier.contains(record.digest)]
        assert len(gone) > 1
        assert tier.stats().evictions == {"budget": len(gone)}

    def test_a_look_of_the_operator_s_shows_in_no_count(self, tier: Tier) -> None:
        tier.put(record_of(1), NOW, never_held)
        reader = RecordReader(key_of(1).digest, None, BUFFERS)
        assert tier.get(key_of(1).digest, reader, count=False) and reader.record()
        assert not tier.get(key_of(2).digest, RecordReader(key_of(2).digest, None, BUFFERS), count=False)
        with pytest.raises(Rejected):
            FaultyTier(tier, "flip").get(
                key_of(1).digest, RecordReader(key_of(1).digest, None, BUFFERS), count=False
            )
        stats = tier.stats()
        assert (stats.hits, stats.bytes_read, stats.misses, stats.rejected) == (0, 0, {}, {})

    @pytest.mark.parametrize("rule", POLICIES)
    def test_evicts_by_the_rule_of_the_settings(self, kind: TierKind, tmp_path: Path, rule: str) -> None:
        tier = build(kind, tmp_path, eviction=rule)
        assert tier._policy is POLICIES[rule]  # type: ignore[attr-defined]
        tier.close()

    def test_what_is_held_stays(self, tier: Tier) -> None:
        held = record_of(0, 4 * MIB)
        tier.put(held, NOW, never_held)
        for number in range(1, 8):
            tier.put(record_of(number, 4 * MIB), NOW, lambda digest: Hold(2 * (digest == held.digest)))
        assert tier.contains(held.digest)
        with pytest.raises(TierFull):
            tier.put(record_of(9, 14 * MIB), NOW, lambda digest: Hold.HARD)

    def test_too_large_is_full(self, tier: Tier) -> None:
        small = record_of(1)
        tier.put(small, NOW, never_held)
        with pytest.raises(TierFull) as caught:
            tier.put(record_of(2, BUDGET + MIB), NOW, never_held)
        assert caught.value.reason == "too_large"
        assert tier.contains(small.digest)

    def test_counts(self, tier: Tier) -> None:
        record = record_of(1)
        tier.put(record, NOW, never_held)
        read(tier, record.digest)
        read(tier, key_of(2).digest)
        tier.delete(record.digest, "admin")
        stats = tier.stats()
        assert (stats.hits, stats.misses, stats.evictions) == (1, {"absent": 1}, {"admin": 1})
        assert stats.bytes_written == record.nbytes
        assert stats.bytes_read > 0

    @pytest.mark.parametrize(("fault", "reason"), [("flip", "corrupt"), ("short", "torn"), ("drop", "torn")])
    def test_damage_on_the_way_is_rejected(self, tier: Tier, fault: str, reason: str) -> None:
        record = record_of(1, 3 * MIB)
        tier.put(record, NOW, never_held)
        with pytest.raises(Rejected) as caught:
            read(FaultyTier(tier, fault), record.digest)
        assert caught.value.reason == reason
        stats = tier.stats()
        seen = fault != "drop"  # a piece that is missing shows to the reader only
        assert (stats.rejected, stats.hits) == (({reason: 1}, 0) if seen else ({}, 1))

    def test_closed_tier_raises_its_own_errors_only(self, tier: Tier) -> None:
        record = record_of(1)
        tier.put(record, NOW, never_held)
        tier.close()
        tier.touch(record.digest, 1.0)
        tier.stats()
        for call in (
            lambda: tier.put(record, NOW, never_held),
            lambda: read(tier, record.digest),
            lambda: tier.delete(record.digest),
            lambda: tier.contains(record.digest),
        ):
            with pytest.raises(TierError):
                call()

    def test_many_threads(self, tier: Tier) -> None:
        records = [record_of(number, 2 * MIB) for number in range(4)]
        wrong: list[BaseException] = []

        def work(mine: int) -> None:
            try:
                for turn in range(6):
                    record = records[(mine + turn) % len(records)]
                    tier.put(record, NOW, never_held, replace=turn % 3 == 0)
                    found = read(tier, record.digest)
                    assert found is None or content(found) == content(record)
                    if turn % 2:
                        tier.delete(record.digest)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestPersistentTier:
    @pytest.fixture(params=PERSISTENT, ids=lambda kind: kind.name)
    def kind(self, request: pytest.FixtureRequest) -> TierKind:
        kind: TierKind = request.param
        return kind

    def test_records_and_recency_survive_a_restart(self, kind: TierKind, tmp_path: Path) -> None:
        records = [record_of(number) for number in range(3)]
        tier = build(kind, tmp_path)
        for record in records:
            tier.put(record, NOW, never_held)
        tier.touch(records[0].digest, 5e9)
        before = {row.digest: row for row in tier.rows()}
        tier.close()

        again = build(kind, tmp_path)
        assert {row.digest: row for row in again.rows()} == before
        for record in records:
            found = read(again, record.digest)
            assert found is not None and content(found) == content(record)
        again.close()

    def test_order_of_eviction_survives_a_restart(self, kind: TierKind, tmp_path: Path) -> None:
        records = [record_of(number, 4 * MIB) for number in range(3)]
        tier = build(kind, tmp_path)
        for number, record in enumerate(records):
            tier.put(record, NOW + number, never_held)
        tier.touch(records[0].digest, 5e9)
        tier.close()

        again = build(kind, tmp_path)
        again.put(record_of(3, 4 * MIB), NOW, never_held)
        assert again.contains(records[0].digest)
        assert not again.contains(records[1].digest)
        again.close()
