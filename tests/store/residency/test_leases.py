"""What is in use stays."""

from __future__ import annotations

from pathlib import Path

from store.types import EntryFilter
from tests.store.samples import (
    Blob,
    decoded_of,
    key_of,
)
from tests.store.stand import Stand, in_threads


class TestLeases:
    def test_a_release_counts_once(self, stand: Stand) -> None:
        first, second = stand.fetch(1), stand.fetch(1)
        assert stand.admin.stats().leases == 2
        first.release()
        first.release()
        assert stand.admin.stats().leases == 1
        with second:
            pass
        assert stand.admin.stats().leases == 0

    def test_evict_leaves_what_is_in_use_and_says_so(self, stand: Stand) -> None:
        with stand.fetch(1):
            stand.outcome(2)
            stand.entries.flush(10)
            result = stand.admin.evict(EntryFilter())
            assert (result.keys, result.skipped_leased) == ((key_of(2).hex,), 1)
            info = stand.admin.entry(key_of(1).hex)
            assert info is not None and info.leased
        assert stand.admin.evict(EntryFilter()).skipped_leased == 0

    def test_delete_unlinks_and_the_holder_keeps_its_bytes(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.fetch(1) as fetched:
            assert stand.admin.delete(key_of(1).hex)
            assert stand.admin.entry(key_of(1).hex) is None
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
        stats = stand.admin.stats()
        assert stats.leases == 0
        assert stats.decoded.bytes_logical <= 384
        stand.entries.close()

    def test_what_is_in_use_stays_in_the_decoded_cache(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=600, memory=0)
        with stand.fetch(1):
            for number in range(2, 6):
                stand.outcome(number)
            stand.entries.flush(10)
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
        assert stand.admin.stats().leases == 0

    def test_e6_an_entry_does_not_change_when_the_store_does(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.reopen()
        with stand.fetch(1) as fetched:
            held = fetched.entry
        stand.admin.delete(key_of(1).hex)
        for number in range(2, 12):
            stand.outcome(number)
        stand.entries.flush(10)
        assert bytes(held.data) == decoded_of(1)
