"""What a request gets: outcomes, promotion, damage on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
from tests.store.stand import Stand


class TestOutcomes:
    def test_a_miss_then_hits_from_each_tier(self, stand: Stand) -> None:
        assert stand.outcome(1) == ("miss", None)
        assert stand.outcome(1) == ("hit", "decoded")
        stand.forget_decoded()
        assert stand.outcome(1) == ("hit", "memory")
        stand.reopen()
        assert stand.outcome(1) == ("hit", "lmdb")
        assert stand.admin.stats().compiles == 0

    def test_a_hit_is_promoted(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        stand.outcome(1)
        stand.entries.flush(10)
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and info.tiers == ("decoded", "memory", "lmdb")

    def test_a_hit_is_written_to_the_faster_tiers_only(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        assert stand.outcome(1) == ("hit", "lmdb")
        stand.forget_decoded()
        assert (stand.memory.writes, stand.disk.writes) == (1, 0)
        assert stand.outcome(1) == ("hit", "memory")
        stand.entries.flush(10)
        assert (stand.memory.writes, stand.disk.writes) == (1, 0)

    def test_promise_2_a_compile_gives_what_a_hit_gives(self, stand: Stand) -> None:
        for mode in ("auto", "read", "bypass", "rewrite"):
            stand.outcome(1, mode)

    def test_read_stores_nothing(self, stand: Stand) -> None:
        assert stand.outcome(1, "read") == ("miss", None)
        stand.entries.flush(10)
        assert stand.admin.entry(key_of(1).hex) is None
        stand.outcome(1)
        assert stand.outcome(1, "read") == ("hit", "decoded")

    def test_bypass_neither_reads_nor_stores(self, stand: Stand) -> None:
        assert stand.outcome(1, "bypass") == ("bypass", None)
        stand.outcome(2)
        assert stand.outcome(2, "bypass") == ("bypass", None)
        assert stand.admin.entry(key_of(1).hex) is None
        assert stand.admin.stats().leases == 0

    def test_rewrite_compiles_anew_and_replaces(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        with stand.fetch(1, "rewrite", lambda: entry_of(9)) as fetched:
            assert (fetched.outcome, fetched.reason) == ("miss", "rewrite")
        stand.entries.flush(10)
        stand.admin.evict(EntryFilter(tier="decoded"))
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
            stand.entries.fetch(key_of(1, codec="raw"), unused)

    def test_a_closed_store_says_so(self, stand: Stand) -> None:
        stand.entries.close()
        stand.entries.close()
        with pytest.raises(StoreClosed):
            stand.fetch(1)

    def test_d7_another_tenant_misses_in_every_tier(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.entries.fetch(key_of(1, tenant="rival"), lambda: entry_of(1)) as fetched:
            assert fetched.outcome == "miss"

    @pytest.mark.parametrize(
        "change", [{"revision": "other"}, {"dtype": "bfloat16"}, {"weights_fingerprint": "x"}]
    )
    def test_c8_other_weights_miss_and_the_old_entry_can_be_evicted(
        self, stand: Stand, change: dict[str, str]
    ) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.entries.fetch(key_of(1, **change), lambda: entry_of(1)) as fetched:
            assert fetched.outcome == "miss"
        stand.entries.flush(10)
        listed = stand.admin.entries(EntryFilter()).entries
        assert len({info.model_digest for info in listed}) == 2
        assert stand.admin.evict(EntryFilter(older_than=0)).keys

    def test_c8_a_record_of_another_codec_version_is_outdated_and_removed(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        stand.entries._codec.identity = "blob/2"  # type: ignore[misc]
        assert stand.outcome(1) == ("outdated", None)
        assert stand.outcome(1) == ("hit", "decoded")
        assert stand.disk.stats().rejected == {"outdated": 1}

    def test_c10_many_images_through_small_tiers_are_never_mixed_up(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "small", decoded=2048, memory=4096, queue=1 << 16)
        for number in [*range(100), *range(0, 100, 3), *range(99, 0, -7)]:
            stand.outcome(number)
        assert stand.entries.flush(10)
        stats = stand.admin.stats()
        assert stats.decoded.evictions["budget"] > 0
        assert stats.tiers[0].evictions["budget"] > 0
        assert stats.compiles < 150
        stand.entries.close()


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
        stand.entries.flush(10)
        assert not stand.disk.contains(key_of(1).digest)

    @pytest.mark.parametrize("first", ["corrupt", "outdated"])
    def test_a_damaged_record_outweighs_an_outdated_one(self, stand: Stand, first: str) -> None:
        sound = record_of(1)
        old = build(
            sound.digest, "blob/0", BlobCodec().prepare(entry_of(1)).pack(), sound.manifest.info, BUFFERS
        )
        damaged = bytearray(sound.payload)
        damaged[7] ^= 1
        bad = replace(sound, payload=memoryview(damaged))
        tiers = (stand.memory, stand.disk) if first == "corrupt" else (stand.disk, stand.memory)
        for tier, record in zip(tiers, (bad, old), strict=True):
            tier.put(record, 1.0, never_held)
        with stand.fetch(1) as fetched:
            assert fetched.outcome == "corrupt"
            assert tiers[0].name in fetched.reason and "checksum" in fetched.reason

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
        stand.entries.flush(10)
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
        stand.entries.flush(10)
        assert stand.admin.stats().writes_dropped == {"codec": 1}
        assert not stand.disk.contains(key_of(1).digest)


def test_record_put_beside_is_found(stand: Stand) -> None:
    """What another process wrote into a tier is a hit."""
    record = record_of(5)
    stand.disk.put(record, 1.0, never_held)
    assert read(stand.disk, record.digest) is not None
    assert stand.outcome(5) == ("hit", "lmdb")
