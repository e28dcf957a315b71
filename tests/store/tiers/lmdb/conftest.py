"""A disk tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.tiers.lmdb.tier import LmdbTier
from tests.store.tiers.lmdb.files import MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def tier(path: Path) -> Iterator[LmdbTier]:
    tier = LmdbTier(path, 32 * MIB)
    yield tier
    tier.close()
