"""Reading everything, and giving space back."""

from __future__ import annotations

from tests.store.stand import Stand


class TestVerify:
    def test_finds_and_removes_what_is_damaged(self, stand: Stand) -> None:
        for number in range(4):
            stand.outcome(number)
        stand.entries.flush(10)
        stand.memory.fault = "flip"
        before = stand.admin.stats()
        reports = list(stand.admin.verify())
        stand.memory.fault = None
        assert [report.checked for report in reports] == [1, 2, 3, 4, 5, 6, 7, 8, 8]
        last = reports[-1]
        assert (last.done, last.total, dict(last.removed), last.failed) == (True, 8, {"corrupt": 4}, ())
        assert stand.memory.stats().entries == 0 and stand.disk.stats().entries == 4
        after = stand.admin.stats()
        assert [tier.hits for tier in after.tiers] == [tier.hits for tier in before.tiers]

    def test_reports_tiers_that_cannot_be_asked(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        stand.disk.fault = "error"
        last = list(stand.admin.verify())[-1]
        assert last.done and last.checked == 1 and "lmdb" in last.failed[0]


def test_the_store_says_what_each_tier_gave(stand: Stand) -> None:
    stand.outcome(1)
    stand.entries.flush(10)
    given = stand.admin.compact()
    assert given["memory"] == 0 and isinstance(given["lmdb"], int)
    assert stand.outcome(1) == ("hit", "decoded")
