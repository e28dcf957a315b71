"""Kills, churn and soaks: minutes, not seconds."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings

from store.errors import Rejected, TierFull
from store.open import assemble
from store.residency.eviction import never_held
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.tier import LmdbTier
from tests.store import test_machine
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, record_of

pytestmark = pytest.mark.slow

MIB = 1 << 20
KEYS = 24

WRITER = """
import sys
from pathlib import Path
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import record_of
tier = LmdbTier(Path(sys.argv[1]), 512 << 20)
print("ready", flush=True)
number = int(sys.argv[2])
while True:
    key = number % 24
    tier.put(record_of(key, 100_000 + key * 400_000), 2000.0 + number, never_held, replace=True)
    print(key, flush=True)
    number += 1
"""

READER = """
import lmdb, os, sys
env = lmdb.open(sys.argv[1], max_dbs=3, readonly=True, max_readers=1024)
transaction = env.begin()
os.kill(os.getpid(), 9)
"""


def size_of(key: int) -> int:
    """Sizes of one to many pieces."""
    return 100_000 + key * 400_000


def test_kill_during_writes_50_times(tmp_path: Path) -> None:
    """After each kill every entry that is served is right, and what was written before the kill is there."""
    path = tmp_path / "store"
    chance = random.Random(7)
    first = 0
    for _ in range(50):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        seen = [child.stdout.readline() for _ in range(chance.randint(0, 3))]
        threading.Event().wait(chance.uniform(0.0, 0.1))
        child.kill()
        written = [int(line) for line in (*seen, *child.communicate()[0].split())]
        first += len(written)
        check_after_kill(path, set(written) - {first % KEYS})
    assert first > 50


def check_after_kill(path: Path, expected: set[int]) -> None:
    tier = LmdbTier(path, 512 * MIB)
    assert tier.problems() == ()
    for key in range(KEYS):
        found = read(tier, key_of(key).digest)
        assert found is not None or key not in expected
        assert found is None or found.payload.tobytes() == decoded_of(key, size_of(key))
    assert tier.stats().rejected == {}
    tier.close()


def test_e2_fill_and_churn(tmp_path: Path) -> None:
    """500 entries of 2 to 48 MiB with random eviction under 768 MiB: the file stays within 1.3 of the
    budget."""
    budget = 768 * MIB
    tier = LmdbTier(tmp_path / "store", budget)
    chance = random.Random(11)
    largest, live = 0, []
    for number in range(500):
        record = record_of(number, chance.randint(2 * MIB, 48 * MIB))
        tier.put(record, 2000.0 + number, never_held)
        live.append(record.digest)
        if chance.random() < 0.3:
            tier.delete(live.pop(chance.randrange(len(live))))
        stats = tier.stats()
        assert stats.bytes_logical <= budget
        largest = max(largest, stats.bytes_physical)
    assert largest <= 1.3 * budget
    assert set(tier.stats().evictions) == {"budget"}
    assert tier.stats().entries > 10
    tier.close()


def test_e1_a_tight_map_never_raises_anything_but_full(tmp_path: Path) -> None:
    tier = LmdbTier(tmp_path / "store", 96 * MIB, map_size=100 * MIB)
    chance = random.Random(3)
    stored = 0
    for number in range(200):
        try:
            tier.put(record_of(number, chance.randint(MIB // 2, 24 * MIB)), 2000.0 + number, never_held)
            stored += 1
        except TierFull:
            continue
        assert read(tier, key_of(number).digest) is not None
    assert stored > 150
    tier.close()


@pytest.mark.parametrize("chore_seconds", [0.2, 1000.0], ids=["timer", "writer alone"])
def test_e4_200_killed_readers(tmp_path: Path, chore_seconds: float) -> None:
    path = tmp_path / "store"
    tier = LmdbTier(path, 16 * MIB, chore_seconds=chore_seconds)
    tier.put(record_of(1, MIB), 2000.0, never_held)
    for turn in range(200):
        subprocess.run([sys.executable, "-c", READER, str(path)], check=False)
        tier.put(record_of(turn % 6, 2 * MIB), 2001.0 + turn, never_held, replace=True)
        assert read(tier, key_of(turn % 6).digest) is not None
    assert tier.stats().bytes_physical <= 32 * MIB
    tier.close()


def test_e7_random_damage_is_never_served(tmp_path: Path) -> None:
    """Bytes of the data file zeroed at random places: whatever is served afterwards is right."""
    chance = random.Random(5)
    for turn in range(25):
        path = tmp_path / f"store{turn}"
        tier = LmdbTier(path, 64 * MIB)
        for number in range(8):
            tier.put(record_of(number, 2 * MIB), 2000.0 + number, never_held)
        tier.close()
        file = path / DATA
        with file.open("r+b") as stream:
            for _ in range(6):
                stream.seek(chance.randrange(2 * 4096, file.stat().st_size - 64))
                stream.write(chance.randbytes(64))
        tier = LmdbTier(path, 64 * MIB)
        for number in range(8):
            try:
                found = read(tier, key_of(number).digest)
            except Rejected:
                continue
            assert found is None or found.payload.tobytes() == decoded_of(number, 2 * MIB)
        tier.close()


def test_memory_stays_flat(tmp_path: Path) -> None:
    """2,000 loads of entries of many sizes: buffers stay within the decoded budget and what may lie idle."""
    store = assemble([LmdbTier(tmp_path / "store", 256 * MIB)], BlobCodec(), 48 * MIB)
    chance = random.Random(9)
    sizes = [chance.randint(100_000, 6 * MIB) for _ in range(40)]

    def fetch(number: int) -> None:
        with store.entries.fetch(key_of(number), lambda: entry_of(number, sizes[number])) as fetched:
            assert fetched.entry.nbytes == sizes[number]

    for number in range(40):
        fetch(number)
    store.entries.flush()
    peak = 0
    for _ in range(2000):
        fetch(chance.randrange(40))
        peak = max(peak, store.entries._buffers.nbytes)
    assert store.admin.stats().compiles == 40
    assert peak <= 1.25 * 48 * MIB + 64 * MIB + 8 * MIB
    store.entries.close()


class LongStoreMachine(test_machine.StoreMachine):
    """The state machine of the fast tests, for longer."""


TestLongStoreMachine = LongStoreMachine.TestCase
TestLongStoreMachine.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
