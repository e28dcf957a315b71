"""Stores on disk, made, looked into and harmed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest

from store.residency.eviction import never_held
from store.tiers.lmdb.records import DATABASES
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import record_of

MIB = 1 << 20
NOW = 2000.0


def filled(path: Path, count: int = 6) -> None:
    tier = LmdbTier(path, 32 * MIB)
    for number in range(count):
        tier.put(record_of(number, 2 * MIB), NOW + number, never_held)
    tier.close()


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@contextmanager
def editing(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A write transaction on a store that nobody has open, and its databases."""
    with lmdb.open(str(path), max_dbs=3, map_size=64 * MIB) as env:
        databases = {name: env.open_db(name.encode()) for name in DATABASES}
        with env.begin(write=True) as transaction:
            yield transaction, databases


def pieces_in(path: Path) -> int:
    with lmdb.open(str(path), max_dbs=3, readonly=True) as env, env.begin() as transaction:
        return int(transaction.stat(env.open_db(b"pieces", txn=transaction, create=False))["entries"])


def aside(path: Path) -> set[str]:
    """Names of the files that were put aside."""
    return {item.name for item in path.iterdir() if item.suffix == ".aside"}


@contextmanager
def small_file_system(mount: Path, kib: int) -> Iterator[Path]:
    """A file system of `kib` KiB at `mount`, which is made."""
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("a small file system can be mounted by root only, and not in every container")
    try:
        yield mount
    finally:
        # Lazily: a failing test leaves the file open.
        subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(mount: Path) -> Path:
    """Leave no byte on a small file system; remove the file that this gives to have room again."""
    filler = mount / "filler"
    with filler.open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(4096))
    return filler
