"""Tiers that fail, and writing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.types import EntryFilter
from tests.store.samples import (
    Blob,
    decoded_of,
    entry_of,
    key_of,
    unused,
)
from tests.store.stand import Stand

MIB = 1 << 20


class TestFailingTiers:
    def test_promise_5_every_tier_down_and_the_answer_is_still_computed(self, stand: Stand) -> None:
        stand.memory.fault = stand.disk.fault = "error"
        assert stand.outcome(1) == ("miss", None)
        stand.entries.flush(10)
        stats = stand.admin.stats()
        assert any("lmdb" in problem for problem in stats.degraded)
        assert any("memory" in problem for problem in stats.degraded)
        assert stats.writes_dropped == {"injected": 2}
        assert stand.admin.entries(EntryFilter()).entries
        assert not stand.admin.delete(key_of(2).hex)

    def test_a_tier_that_works_again_is_no_longer_degraded(self, stand: Stand) -> None:
        stand.disk.fault = "error"
        stand.outcome(1)
        stand.entries.flush(10)
        assert stand.admin.stats().degraded
        stand.disk.fault = None
        stand.outcome(2)
        stand.entries.flush(10)
        assert not stand.admin.stats().degraded

    def test_a_write_that_works_again_is_enough(self, stand: Stand) -> None:
        stand.disk.fault = "error"
        stand.outcome(1, "rewrite")
        stand.entries.flush(10)
        assert stand.admin.stats().degraded
        stand.disk.fault = None
        stand.outcome(1, "rewrite")
        stand.entries.flush(10)
        assert not stand.admin.stats().degraded

    def test_a_slower_tier_answers_for_a_failing_one(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.forget_decoded()
        stand.memory.fault = "error"
        assert stand.outcome(1) == ("hit", "lmdb")

    def test_a_full_tier_is_not_degraded(self, stand: Stand) -> None:
        stand.disk.fault = "full"
        stand.outcome(1)
        stand.entries.flush(10)
        stats = stand.admin.stats()
        assert stats.writes_dropped == {"full": 1}
        assert not stats.degraded

    def test_without_host_memory_an_entry_is_computed_and_not_stored(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand.outcome(1)
        stand.reopen()

        def no_memory(number: int, size: int) -> None:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr("store.records.buffers.mmap.mmap", no_memory)
        assert stand.outcome(1, "read") == ("miss", None)
        assert stand.outcome(2) == ("miss", None)
        stand.entries.flush(10)
        stats = stand.admin.stats()
        assert stats.writes_dropped == {"no_memory": 1} and not stats.degraded
        monkeypatch.undo()
        assert stand.outcome(1) == ("hit", "lmdb")

    def test_a_failing_compile_is_the_callers_and_leaves_nothing_behind(self, stand: Stand) -> None:
        def fail() -> Blob:
            raise RuntimeError("no memory on the device")

        with pytest.raises(RuntimeError, match="no memory"):
            stand.fetch(1, compile=fail)
        assert stand.admin.stats().leases == 0
        assert stand.outcome(1) == ("miss", None)


class TestWriteBehind:
    def test_a_full_queue_skips_the_write_and_never_waits(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", queue=600)
        stand.disk.write_gate.clear()
        for number in range(4):
            assert stand.outcome(number) == ("miss", None)
        stats = stand.admin.stats()
        assert stats.writes_dropped == {"queue_full": 2}
        assert (stats.write_queue, stats.write_queue_bytes) == (2, 512)
        stand.disk.write_gate.set()
        assert stand.entries.flush(10)
        assert [stand.disk.contains(key_of(number).digest) for number in range(4)] == [
            True,
            True,
            False,
            False,
        ]
        assert stand.admin.stats().write_queue_bytes == 0
        stand.entries.close()

    def test_what_waits_to_be_written_can_be_read(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=0)
        stand.memory.write_gate.clear()
        stand.outcome(1)
        with stand.fetch(1, compile=unused) as fetched:
            assert (fetched.outcome, fetched.tier) == ("hit", "decoded")
        stand.memory.write_gate.set()
        stand.entries.close()

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
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and info.tiers == ("queued",)
        stand.memory.write_gate.set()
        assert stand.entries.flush(10)
        with stand.fetch(1, compile=unused) as fetched:
            assert (fetched.tier, bytes(fetched.entry.data)) == ("memory", decoded_of(2))
        stand.close()

    def test_flush_tells_when_time_did_not_suffice(self, stand: Stand) -> None:
        stand.memory.write_gate.clear()
        stand.outcome(1)
        assert not stand.entries.flush(0.01)
        stand.memory.write_gate.set()
        assert stand.entries.flush(10)
