"""The benchmark of the store runs, at a small size."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.store import Bench


@pytest.mark.slow
def test_the_benchmark_measures(tmp_path: Path) -> None:
    """At a small size; dropping the page cache is left out, as not every file system obeys."""
    arguments = argparse.Namespace(tokens=40, rounds=1, counts=[3], count_mib=1, churn=6)
    bench = Bench(tmp_path, arguments)
    ratios: dict[str, float] = {}
    for measure in (bench.codecs, bench.disk, bench.redis, bench.counts, bench.churn):
        found, figures = measure()
        ratios |= found
        assert figures
    assert set(ratios) == {
        "lmdb_read_warm_vs_memcpy",
        "lmdb_write_vs_raw_fsync",
        "redis_read_vs_memcpy",
        "churn_file_vs_budget",
    }
    assert all(ratio > 0 for ratio in ratios.values())
