"""Which tiers do not do their work at the moment."""

from __future__ import annotations

import logging

import pytest

from store.errors import TierFull, TierUnavailable
from store.tiers.health import Health


def test_the_last_fault_of_each_tier_is_told_until_it_works_again() -> None:
    health = Health()
    health.failed("lmdb", TierUnavailable("timeout"))
    health.failed("redis", TierUnavailable("unreachable", "gone"))
    health.failed("lmdb", TierUnavailable("broken", "page 7"))
    assert health.faults() == ("lmdb: broken: page 7", "redis: unreachable: gone")
    health.worked("lmdb")
    assert health.faults() == ("redis: unreachable: gone",)


def test_a_fault_is_logged_once_however_often_it_is_met(caplog: pytest.LogCaptureFixture) -> None:
    health = Health()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            health.failed("lmdb", TierUnavailable("timeout"))
        for _ in range(2):
            health.worked("lmdb")
        health.failed("lmdb", TierUnavailable("timeout"))
    assert [record.message for record in caplog.records] == [
        "tier lmdb failed: timeout",
        "tier lmdb works again",
        "tier lmdb failed: timeout",
    ]


@pytest.mark.parametrize(("reason", "place"), [("failed", True), ("timeout", False)])
def test_the_place_of_a_fault_is_wanted_where_nobody_foresaw_it(
    caplog: pytest.LogCaptureFixture, reason: str, place: bool
) -> None:
    health = Health()
    with health.noting("lmdb"):
        raise TierUnavailable(reason)
    assert health.faults() == (f"lmdb: {reason}",)
    (record,) = caplog.records
    assert bool(record.exc_info) is place


def test_a_full_tier_is_no_fault_and_noting_hides_no_error_of_another_kind() -> None:
    health = Health()
    with health.noting("lmdb"):
        raise TierFull("quota")
    with pytest.raises(KeyError), health.noting("lmdb"):
        raise KeyError("ours")
    assert health.faults() == ()
