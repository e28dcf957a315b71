"""Writing down only what is asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.residency.sightings import Sightings
from tests.store.samples import key_of
from tests.store.stand import Stand


class TestSecondSight:
    @pytest.fixture
    def stand(self, tmp_path: Path) -> Iterator[Stand]:
        stand = Stand(tmp_path / "store", persist_on_second=True)
        yield stand
        stand.close()

    def test_what_is_seen_once_is_not_written(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        assert not stand.disk.contains(key_of(1).digest)
        assert stand.outcome(1) == ("hit", "decoded")
        stand.entries.flush(10)
        assert stand.disk.contains(key_of(1).digest)

    def test_the_second_sight_counts_after_the_entry_is_gone_too(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.forget_decoded()
        assert stand.outcome(1) == ("miss", None)
        stand.entries.flush(10)
        assert stand.disk.contains(key_of(1).digest)

    def test_rewrite_is_written_at_once(self, stand: Stand) -> None:
        stand.outcome(1, "rewrite")
        stand.entries.flush(10)
        assert stand.disk.contains(key_of(1).digest)


def test_only_so_many_sights_are_remembered() -> None:
    sightings = Sightings(limit=2)
    digests = [key_of(number).digest for number in range(3)]
    assert [sightings.again(digest) for digest in digests] == [False] * 3
    assert [sightings.again(digest) for digest in reversed(digests)] == [True, True, False]
