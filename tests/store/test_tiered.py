"""The tiered store: outcomes, promotion, write-behind, one load per key, leases, failing tiers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.codecs.protocol import Prepared
from store.errors import CodecError, InvalidKey, StoreClosed
from store.records.record import Encoded, NamedBuffer, build
from store.residency.eviction import never_held
from store.types import EntryFilter
from tests.store.samples import (
    BUFFERS,
    Blob,
    BlobCodec,
    decoded_of,
    entry_of,
    key_of,
    read,
    record_of,
    unused,
)
from tests.store.stand import Stand, in_threads

MIB = 1 << 20


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path / "store")
    yield stand
    stand.close()


class TestOutcomes:
    def test_a_miss_then_hits_from_each_tier(self, stand: Stand) -> None:
        assert stand.outcome(1) == ("miss", None)
        assert stand.outcome(1) == ("hit", "decoded")
        stand.forget_decoded()
        assert stand.outcome(1) == ("hit", "memory")
        stand.reopen()
        assert stand.outcome(1) == ("hit", "lmdb")
        assert stand.store.stats().compiles == 0

    def test_a_hit_is_promoted(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        stand.outcome(1)
        stand.store.flush(10)
        info = stand.store.lookup(key_of(1))
        assert info is not None and info.tiers == ("decoded", "memory", "lmdb")

    def test_promise_2_a_compile_gives_what_a_hit_gives(self, stand: Stand) -> None:
        for mode in ("auto", "read", "bypass", "rewrite"):
            stand.outcome(1, mode)

    def test_read_stores_nothing(self, stand: Stand) -> None:
        assert stand.outcome(1, "read") == ("miss", None)
        stand.store.flush(10)
        assert stand.store.lookup(key_of(1)) is None
        stand.outcome(1)
        assert stand.outcome(1, "read") == ("hit", "decoded")

    def test_bypass_neither_reads_nor_stores(self, stand: Stand) -> None:
        assert stand.outcome(1, "bypass") == ("bypass", None)
        stand.outcome(2)
        assert stand.outcome(2, "bypass") == ("bypass", None)
        assert stand.store.lookup(key_of(1)) is None
        assert stand.store.stats().leases == 0

    def test_rewrite_compiles_anew_and_replaces(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        with stand.fetch(1, "rewrite", lambda: entry_of(9)) as fetched:
            assert (fetched.outcome, fetched.reason) == ("miss", "rewrite")
        stand.store.flush(10)
        stand.store.evict(EntryFilter(tier="decoded"))
        with stand.fetch(1, compile=unused) as fetched:
            assert bytes(fetched.entry.data) == decoded_of(9)

    def test_figures_of_a_fetch(self, stand: Stand) -> None:
        with stand.fetch(1) as miss:
            assert miss.compile_seconds > 0 and miss.load_seconds == 0
            assert miss.bytes == 256
        stand.reopen()
        with stand.fetch(1) as hit:
            assert hit.load_seconds > 0 and hit.compile_seconds == 0
            assert hit.bytes == record_of(1).nbytes or hit.bytes > 256

    def test_a_key_of_another_codec_is_refused(self, stand: Stand) -> None:
        with pytest.raises(InvalidKey):
            stand.store.fetch(key_of(1, codec="raw"), unused)

    def test_a_closed_store_says_so(self, stand: Stand) -> None:
        stand.store.close()
        stand.store.close()
        with pytest.raises(StoreClosed):
            stand.fetch(1)

    def test_d7_another_tenant_misses_in_every_tier(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.store.fetch(key_of(1, tenant="rival"), lambda: entry_of(1)) as fetched:
            assert fetched.outcome == "miss"

    @pytest.mark.parametrize(
        "change", [{"revision": "other"}, {"dtype": "bfloat16"}, {"weights_fingerprint": "x"}]
    )
    def test_c8_other_weights_miss_and_the_old_entry_can_be_evicted(
        self, stand: Stand, change: dict[str, str]
    ) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.store.fetch(key_of(1, **change), lambda: entry_of(1)) as fetched:
            assert fetched.outcome == "miss"
        stand.store.flush(10)
        listed = stand.store.entries(EntryFilter()).entries
        assert len({info.model_digest for info in listed}) == 2
        assert stand.store.evict(EntryFilter(older_than=0)).keys

    def test_c8_a_record_of_another_codec_version_is_outdated_and_removed(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        stand.store._codec.identity = "blob/2"  # type: ignore[misc]
        assert stand.outcome(1) == ("outdated", None)
        assert stand.outcome(1) == ("hit", "decoded")
        assert stand.disk.stats().rejected == {"outdated": 1}

    def test_c10_many_images_through_small_tiers_are_never_mixed_up(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "small", decoded=2048, memory=4096, queue=1 << 16)
        for number in [*range(100), *range(0, 100, 3), *range(99, 0, -7)]:
            stand.outcome(number)
        assert stand.store.flush(10)
        stats = stand.store.stats()
        assert stats.decoded.evictions["budget"] > 0
        assert stats.tiers[0].evictions["budget"] > 0
        assert stats.compiles < 150
        stand.store.close()


class TestDamage:
    @pytest.mark.parametrize(("fault", "reason"), [("flip", "corrupt"), ("short", "torn"), ("drop", "torn")])
    def test_a_damaged_record_is_a_miss_counted_and_removed(
        self, stand: Stand, fault: str, reason: str
    ) -> None:
        stand.outcome(1)
        stand.reopen()
        stand.disk.fault = fault
        with stand.fetch(1, "read") as fetched:
            assert fetched.outcome == "corrupt"
            assert reason in fetched.reason and "lmdb" in fetched.reason
        stand.disk.fault = None
        stand.store.flush(10)
        assert not stand.disk.contains(key_of(1).digest)

    def test_damage_in_one_tier_is_mended_from_the_next(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.forget_decoded()
        stand.memory.fault = "flip"
        assert stand.outcome(1) == ("hit", "lmdb")
        stand.memory.fault = None
        stand.forget_decoded()
        assert stand.outcome(1) == ("hit", "memory")

    def test_a_record_that_the_codec_cannot_decode_is_corrupt_and_removed(self, stand: Stand) -> None:
        key = key_of(1)
        other = NamedBuffer("other", "uint8", (4,), memoryview(b"abcd"))
        info = record_of(1).manifest.info
        record = build(key.digest, BlobCodec.identity, Encoded([other]), info, BUFFERS)
        stand.disk.put(record, 1.0, never_held)
        assert stand.outcome(1, "read") == ("corrupt", None)
        stand.store.flush(10)
        assert not stand.disk.contains(key.digest)

    def test_an_entry_that_cannot_be_encoded_is_served_and_not_stored(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> Encoded:
            raise CodecError("not contiguous")

        def prepare(codec: BlobCodec, entry: Blob) -> Prepared[Blob]:
            return Prepared(Blob(decoded_of(1)), fail)

        monkeypatch.setattr(BlobCodec, "prepare", prepare)
        assert stand.outcome(1) == ("miss", None)
        stand.store.flush(10)
        assert stand.store.stats().writes_dropped == {"codec": 1}
        assert not stand.disk.contains(key_of(1).digest)


class TestFailingTiers:
    def test_promise_5_every_tier_down_and_the_answer_is_still_computed(self, stand: Stand) -> None:
        stand.memory.fault = stand.disk.fault = "error"
        assert stand.outcome(1) == ("miss", None)
        stand.store.flush(10)
        stats = stand.store.stats()
        assert any("lmdb" in problem for problem in stats.degraded)
        assert any("memory" in problem for problem in stats.degraded)
        assert stats.writes_dropped == {"injected": 2}
        assert stand.store.entries(EntryFilter()).entries
        assert not stand.store.delete(key_of(2).hex)

    def test_a_tier_that_works_again_is_no_longer_degraded(self, stand: Stand) -> None:
        stand.disk.fault = "error"
        stand.outcome(1)
        stand.store.flush(10)
        assert stand.store.stats().degraded
        stand.disk.fault = None
        stand.outcome(2)
        stand.store.flush(10)
        assert not stand.store.stats().degraded

    def test_a_slower_tier_answers_for_a_failing_one(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.forget_decoded()
        stand.memory.fault = "error"
        assert stand.outcome(1) == ("hit", "lmdb")

    def test_a_full_tier_is_not_degraded(self, stand: Stand) -> None:
        stand.disk.fault = "full"
        stand.outcome(1)
        stand.store.flush(10)
        stats = stand.store.stats()
        assert stats.writes_dropped == {"full": 1}
        assert not stats.degraded

    def test_a_failing_compile_is_the_callers_and_leaves_nothing_behind(self, stand: Stand) -> None:
        def fail() -> Blob:
            raise RuntimeError("no memory on the device")

        with pytest.raises(RuntimeError, match="no memory"):
            stand.fetch(1, compile=fail)
        assert stand.store.stats().leases == 0
        assert stand.outcome(1) == ("miss", None)


class TestWriteBehind:
    def test_a_full_queue_skips_the_write_and_never_waits(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", queue=600)
        stand.disk.write_gate.clear()
        for number in range(4):
            assert stand.outcome(number) == ("miss", None)
        stats = stand.store.stats()
        assert stats.writes_dropped == {"queue_full": 2}
        assert (stats.write_queue, stats.write_queue_bytes) == (2, 512)
        stand.disk.write_gate.set()
        assert stand.store.flush(10)
        assert [stand.disk.contains(key_of(number).digest) for number in range(4)] == [
            True,
            True,
            False,
            False,
        ]
        assert stand.store.stats().write_queue_bytes == 0
        stand.store.close()

    def test_what_waits_to_be_written_can_be_read(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=0)
        stand.memory.write_gate.clear()
        stand.outcome(1)
        with stand.fetch(1, compile=unused) as fetched:
            assert (fetched.outcome, fetched.tier) == ("hit", "decoded")
        stand.memory.write_gate.set()
        stand.store.close()

    def test_close_writes_what_is_queued(self, stand: Stand) -> None:
        for number in range(20):
            stand.outcome(number)
        stand.reopen()
        assert [stand.outcome(number)[0] for number in range(20)] == ["hit"] * 20

    def test_the_newest_of_what_waits_is_read(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=0)
        stand.memory.write_gate.clear()
        stand.outcome(1)
        stand.fetch(1, "rewrite", lambda: entry_of(2)).release()
        with stand.fetch(1, compile=unused) as fetched:
            assert bytes(fetched.entry.data) == decoded_of(2)
        info = stand.store.lookup(key_of(1))
        assert info is not None and info.tiers == ("queued",)
        stand.memory.write_gate.set()
        assert stand.store.flush(10)
        with stand.fetch(1, compile=unused) as fetched:
            assert (fetched.tier, bytes(fetched.entry.data)) == ("memory", decoded_of(2))
        stand.close()

    def test_flush_tells_when_time_did_not_suffice(self, stand: Stand) -> None:
        stand.memory.write_gate.clear()
        stand.outcome(1)
        assert not stand.store.flush(0.01)
        stand.memory.write_gate.set()
        assert stand.store.flush(10)


class TestOneLoadPerKey:
    def test_f12_many_requests_compile_once(self, stand: Stand) -> None:
        gate, entered = threading.Event(), threading.Event()

        def slow() -> Blob:
            entered.set()
            gate.wait()
            return entry_of(1)

        def request(number: int) -> str:
            with stand.fetch(1, compile=slow) as fetched:
                assert bytes(fetched.entry.data) == decoded_of(1)
                return fetched.outcome

        opener = threading.Thread(target=lambda: (entered.wait(), wait_for_joined(stand, 7), gate.set()))
        opener.start()
        outcomes = in_threads(8, request)
        opener.join()
        assert sorted(outcomes) == ["hit"] * 7 + ["miss"]
        stats = stand.store.stats()
        assert (stats.compiles, stats.joined, stats.leases) == (1, 7, 0)

    @pytest.mark.parametrize("death", [RuntimeError, KeyboardInterrupt])
    def test_f12_followers_survive_the_leaders_failure(
        self, stand: Stand, death: type[BaseException]
    ) -> None:
        gate, entered = threading.Event(), threading.Event()
        calls: list[int] = []

        def compile() -> Blob:
            calls.append(1)
            if len(calls) == 1:
                entered.set()
                gate.wait()
                raise death
            return entry_of(1)

        def request(number: int) -> str:
            with stand.fetch(1, compile=compile) as fetched:
                return fetched.outcome

        opener = threading.Thread(target=lambda: (entered.wait(), wait_for_joined(stand, 5), gate.set()))
        opener.start()
        results = in_threads(6, request)
        opener.join()
        assert sum(isinstance(result, death) for result in results) == 1
        assert sorted(result for result in results if isinstance(result, str)) == ["hit"] * 4 + ["miss"]
        assert len(calls) == 2
        assert stand.store.stats().leases == 0

    def test_c11_a_request_during_the_load_waits_for_it(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        stand.disk.read_gate.clear()
        opener = threading.Thread(target=lambda: (wait_for_joined(stand, 1), stand.disk.read_gate.set()))
        opener.start()
        outcomes = in_threads(2, lambda _: stand.outcome(1))
        opener.join()
        assert outcomes == [("hit", "lmdb")] * 2
        assert stand.disk.reads == 1

    def test_c11_a_request_during_the_write_sees_whole_data(self, stand: Stand) -> None:
        stand.disk.write_gate.clear()
        stand.outcome(1)
        assert stand.outcome(1) == ("hit", "decoded")
        stand.disk.write_gate.set()

    def test_a_follower_stores_what_a_read_only_leader_does_not(self, stand: Stand) -> None:
        gate, entered = threading.Event(), threading.Event()

        def slow() -> Blob:
            entered.set()
            gate.wait()
            return entry_of(1)

        leader = threading.Thread(target=lambda: stand.fetch(1, "read", slow).release())
        leader.start()
        entered.wait()
        opener = threading.Thread(target=lambda: (wait_for_joined(stand, 1), gate.set()))
        opener.start()
        with stand.fetch(1, compile=unused) as fetched:
            assert fetched.outcome == "hit"
        leader.join()
        opener.join()
        stand.store.flush(10)
        assert stand.store.lookup(key_of(1)) is not None


class TestLeases:
    def test_a_release_counts_once(self, stand: Stand) -> None:
        first, second = stand.fetch(1), stand.fetch(1)
        assert stand.store.stats().leases == 2
        first.release()
        first.release()
        assert stand.store.stats().leases == 1
        with second:
            pass
        assert stand.store.stats().leases == 0

    def test_evict_leaves_what_is_in_use_and_says_so(self, stand: Stand) -> None:
        with stand.fetch(1):
            stand.outcome(2)
            stand.store.flush(10)
            result = stand.store.evict(EntryFilter())
            assert (result.keys, result.skipped_leased) == ((key_of(2).hex,), 1)
            info = stand.store.lookup(key_of(1))
            assert info is not None and info.leased
        assert stand.store.evict(EntryFilter()).skipped_leased == 0

    def test_delete_unlinks_and_the_holder_keeps_its_bytes(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.fetch(1) as fetched:
            assert stand.store.delete(key_of(1).hex)
            assert stand.store.lookup(key_of(1)) is None
            for number in range(2, 40):
                stand.outcome(number)
            assert bytes(fetched.entry.data) == decoded_of(1)

    def test_e17_more_in_use_than_the_cache_holds(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=384, memory=600)
        for turn in range(3):
            wrong = [
                r for r in in_threads(8, lambda n, t=turn: stand.outcome(n + t)) if isinstance(r, Exception)
            ]
            assert not wrong
        stats = stand.store.stats()
        assert stats.leases == 0
        assert stats.decoded.bytes_logical <= 384
        stand.store.close()

    def test_what_is_in_use_stays_in_the_decoded_cache(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=600, memory=0)
        with stand.fetch(1):
            for number in range(2, 6):
                stand.outcome(number)
            stand.store.flush(10)
            assert stand.outcome(1) == ("hit", "decoded")
        for number in range(2, 6):
            stand.outcome(number)
        assert stand.outcome(1) == ("hit", "lmdb")
        stand.close()

    def test_e17_leases_come_back_after_errors(self, stand: Stand) -> None:
        def fail() -> Blob:
            raise RuntimeError

        results = in_threads(6, lambda _: stand.fetch(1, compile=fail))
        assert all(isinstance(result, RuntimeError) for result in results)
        assert stand.store.stats().leases == 0

    def test_e6_an_entry_does_not_change_when_the_store_does(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.fetch(1) as fetched:
            held = fetched.entry
        stand.store.delete(key_of(1).hex)
        for number in range(2, 12):
            stand.outcome(number)
        stand.store.flush(10)
        assert bytes(held.data) == decoded_of(1)


class TestAdmin:
    def test_entries_come_in_pages(self, stand: Stand) -> None:
        for number in range(7):
            stand.outcome(number)
        stand.store.flush(10)
        keys: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor:
            page = stand.store.entries(EntryFilter(), cursor, 3)
            keys += [info.key for info in page.entries]
            cursor, pages = page.cursor, pages + 1
        assert keys == sorted(key_of(number).hex for number in range(7))
        assert pages == 3

    def test_filters(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.clock.now += 100
        with stand.store.fetch(key_of(2, tenant="rival", model_id="other"), lambda: entry_of(2, 4000)):
            pass
        stand.store.flush(10)

        def found(**select: Any) -> list[str]:
            return [info.tenant for info in stand.store.entries(EntryFilter(**select)).entries]

        assert found(tenant="acme") == ["acme"]
        assert found(model="other") == ["rival"]
        assert found(older_than=50) == ["acme"]
        assert found(min_bytes=2000) == ["rival"]
        assert sorted(found(tier="lmdb")) == ["acme", "rival"]
        assert found(tier="redis") == []

    def test_an_entry_tells_its_story(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.clock.now += 5
        stand.outcome(1)
        stand.store.flush(10)
        info = stand.store.entry(key_of(1).hex)
        assert info is not None
        assert (info.tenant, info.namespace, info.model, info.codec) == ("acme", "default", "tiny", "blob")
        assert (info.width, info.height, info.tokens) == (2, 1, 32)
        assert (info.created, info.last_used, info.hits) == (1000.0, 1005.0, 1)
        assert info.bytes == stand.disk.stats().bytes_logical

    def test_a_look_is_no_use(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        before = stand.store.entry(key_of(1).hex)
        stand.clock.now += 50
        stand.store.entries(EntryFilter())
        stand.store.lookup(key_of(1))
        assert stand.store.entry(key_of(1).hex) == before

    def test_a_use_counts_in_every_tier(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        stand.clock.now += 50
        assert stand.outcome(1) == ("hit", "decoded")
        for tier in (stand.memory, stand.disk):
            row = tier.row(key_of(1).digest)
            assert row is not None and row.last_used == 1050.0

    @pytest.mark.parametrize("key", ["", "zz", "ab", "0" * 63, "0" * 66, "A" * 64, " " + "0" * 64])
    def test_what_is_no_key_is_not_found(self, stand: Stand, key: str) -> None:
        assert not stand.store.delete(key)
        assert stand.store.entry(key) is None

    def test_evict_frees_the_least_recent_until_enough(self, stand: Stand) -> None:
        for number in range(4):
            stand.outcome(number)
            stand.clock.now += 1
        stand.store.flush(10)
        stand.outcome(0)
        first = stand.store.lookup(key_of(1))
        assert first is not None
        trial = stand.store.evict(EntryFilter(), max_bytes=first.bytes + 1, dry_run=True)
        assert trial.keys == (key_of(1).hex, key_of(2).hex) and trial.dry_run
        assert len(stand.store.entries(EntryFilter()).entries) == 4
        result = stand.store.evict(EntryFilter(), max_bytes=first.bytes + 1)
        assert result.keys == trial.keys and result.bytes == trial.bytes > first.bytes
        assert {info.key for info in stand.store.entries(EntryFilter()).entries} == {
            key_of(3).hex,
            key_of(0).hex,
        }
        assert stand.disk.stats().evictions == {"admin": 2}

    def test_evict_from_one_tier(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        stand.store.evict(EntryFilter(tier="memory"))
        info = stand.store.lookup(key_of(1))
        assert info is not None and info.tiers == ("decoded", "lmdb")

    def test_delete_wins_over_a_compile_and_a_write_under_way(self, stand: Stand) -> None:
        gate, entered = threading.Event(), threading.Event()

        def slow() -> Blob:
            entered.set()
            gate.wait()
            return entry_of(1)

        stand.memory.write_gate.clear()
        stand.outcome(2)
        stand.outcome(3)
        leader = threading.Thread(target=lambda: stand.fetch(1, compile=slow).release())
        leader.start()
        entered.wait()
        assert not stand.store.delete(key_of(1).hex)
        assert stand.store.delete(key_of(3).hex)
        gate.set()
        leader.join()
        stand.memory.write_gate.set()
        stand.store.flush(10)
        assert [info.key for info in stand.store.entries(EntryFilter()).entries] == [key_of(2).hex]

    def test_delete_waits_for_a_write_that_has_begun(self, stand: Stand) -> None:
        stand.disk.write_gate.clear()
        stand.outcome(1)
        pause = threading.Event()
        while not stand.disk.writes:
            pause.wait(0.002)
        done = threading.Event()
        deleter = threading.Thread(target=lambda: (stand.store.delete(key_of(1).hex), done.set()))
        deleter.start()
        assert not done.wait(0.05)
        stand.disk.write_gate.set()
        deleter.join()
        assert stand.store.lookup(key_of(1)) is None
        assert not stand.disk.contains(key_of(1).digest)

    def test_totals(self, stand: Stand) -> None:
        stand.outcome(1)
        with stand.store.fetch(key_of(2, tenant="rival"), lambda: entry_of(2)):
            pass
        stand.store.flush(10)
        stats = stand.store.stats()
        assert [tier.name for tier in stats.tiers] == ["memory", "lmdb"]
        assert stats.decoded.entries == 2
        assert sum(stats.bytes_by_tenant.values()) == stats.tiers[1].bytes_logical
        assert set(stats.bytes_by_tenant) == {"acme", "rival"}
        assert stats.bytes_by_model == {"tiny": stats.tiers[1].bytes_logical}


def wait_for_joined(stand: Stand, count: int) -> None:
    pause = threading.Event()
    while stand.store._flights.joined < count:
        pause.wait(0.002)


def test_record_put_beside_is_found(stand: Stand) -> None:
    """What another process wrote into a tier is a hit."""
    record = record_of(5)
    stand.disk.put(record, 1.0, never_held)
    assert read(stand.disk, record.digest) is not None
    assert stand.outcome(5) == ("hit", "lmdb")
