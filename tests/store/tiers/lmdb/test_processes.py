"""Several processes on one directory, forked, killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from store.errors import TierUnavailable
from store.open import assemble
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, record_of, unused
from tests.store.tiers.lmdb.files import MIB, NOW, filled, run

# Newer Pythons warn of forking with threads about; that it works is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_c12_hits_after_a_restart_with_another_hash_seed(path: Path) -> None:
    program = """
import sys
from store.open import assemble
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import BlobCodec, entry_of, key_of
from pathlib import Path
store = assemble([LmdbTier(Path(sys.argv[1]), 1 << 24)], BlobCodec(), 1 << 20)
for number in range(20):
    with store.entries.fetch(key_of(number), lambda: entry_of(number)) as fetched:
        print(fetched.outcome, fetched.tier)
store.entries.close()
"""
    outputs = []
    for seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(set(child.stdout.splitlines()))
    assert outputs == [{"miss None"}, {"hit lmdb"}]


def test_e4_killed_readers_do_not_fill_the_table(path: Path) -> None:
    filled(path, count=1)
    program = """
import lmdb, sys, time
env = lmdb.open(sys.argv[1], max_dbs=3, readonly=True, max_readers=1024)
transaction = env.begin()
print("reading", flush=True)
time.sleep(60)
"""
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == b"reading\n"
        child.kill()
        child.wait()
        child.stdout.close()
    tier = LmdbTier(path, 32 * MIB)
    assert read(tier, key_of(0).digest) is not None
    assert tier._environment.check_readers() == 0
    for number in range(40):
        tier.put(record_of(number, 4 * MIB), NOW + number, never_held)
    assert tier.stats().bytes_physical < 48 * MIB
    tier.close()


def test_e4_the_timer_frees_slots_of_readers_that_died_meanwhile(path: Path) -> None:
    tier = LmdbTier(path, 32 * MIB, chore_seconds=0.02)
    tier.put(record_of(1), NOW, never_held)
    program = """
import lmdb, os, sys
env = lmdb.open(sys.argv[1], max_dbs=3, readonly=True, max_readers=1024)
transaction = env.begin()
os.kill(os.getpid(), 9)
"""
    assert run(program, path).returncode == -signal.SIGKILL
    pause = threading.Event()
    for _ in range(500):
        if str(tier._environment.open().env.readers()).count("\n") <= 1:
            break
        pause.wait(0.02)
    assert tier._environment.check_readers() == 0
    tier.close()


def test_e5_the_environment_belongs_to_the_process_that_uses_it(tier: LmdbTier) -> None:
    tier.put(record_of(1), NOW, never_held)
    assert tier.opened_by == os.getpid()

    def work() -> bool:
        found = read(tier, key_of(1).digest)
        tier.put(record_of(2, MIB), NOW, never_held)
        return found is not None and tier.opened_by == os.getpid()

    assert all(in_children(4, work))
    assert read(tier, key_of(1).digest) is not None
    row = tier.row(key_of(2).digest)
    assert row is not None
    tier.put(record_of(3, MIB), NOW, never_held)
    assert tier.stats().entries == 3


def test_e5_a_store_built_before_the_fork_works_after_it(path: Path) -> None:
    store = assemble([LmdbTier(path, 32 * MIB)], BlobCodec(), MIB)

    def work() -> bool:
        with store.entries.fetch(key_of(1), lambda: entry_of(1)) as fetched:
            right = bytes(fetched.entry.data) == decoded_of(1)
        store.entries.close()
        return right

    assert all(in_children(3, work))
    with store.entries.fetch(key_of(1), unused) as fetched:
        assert fetched.tier == "lmdb"
    store.entries.close()


def test_e5_a_fork_during_a_read_leaves_the_child_without_the_tier(tier: LmdbTier) -> None:
    tier.put(record_of(1), NOW, never_held)

    def work() -> bool:
        try:
            tier.contains(key_of(1).digest)
        except TierUnavailable:
            return bool(tier.problems())
        return False

    with tier._environment.read() as (transaction, opened):
        assert all(in_children(1, work))
        assert transaction.get(key_of(1).digest, db=opened["records"]) is not None


def test_two_processes_see_each_others_records(path: Path) -> None:
    tier = LmdbTier(path, 8 * MIB)
    tier.put(record_of(1, MIB), NOW, never_held)
    program = """
import sys
from pathlib import Path
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import record_of
tier = LmdbTier(Path(sys.argv[1]), 8 << 20)
for number in range(2, 8):
    tier.put(record_of(number, 1 << 20), 3000.0 + number, never_held)
tier.close()
"""
    assert run(program, path).returncode == 0
    assert len(list(tier.rows())) == 7
    for number in range(8, 12):
        tier.put(record_of(number, MIB), NOW + 5000, never_held)
    assert tier.stats().bytes_logical <= 8 * MIB
    assert not tier.contains(key_of(1).digest)
    tier.close()


def test_processes_that_begin_one_store_at_once_all_have_it(path: Path) -> None:
    program = """
import sys
from pathlib import Path
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import record_of
sys.stdin.read()
tier = LmdbTier(Path(sys.argv[1]), 8 << 20)
tier.put(record_of(int(sys.argv[2])), 2000.0, never_held)
print(tier.problems())
tier.close()
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    for child in children:
        assert child.stdout is not None and child.stdout.read() == "()\n"
        child.stdout.close()
        assert child.wait() == 0
    tier = LmdbTier(path, 8 * MIB)
    assert {row.digest for row in tier.rows()} == {key_of(number).digest for number in range(4)}
    assert tier.problems() == ()
    tier.close()


def test_reads_go_on_while_the_tier_closes(path: Path) -> None:
    filled(path)
    tier = LmdbTier(path, 32 * MIB)
    started = threading.Event()
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                assert read(tier, key_of(2).digest) is not None
                started.set()
        except TierUnavailable:
            return
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    tier.close()
    for thread in threads:
        thread.join()
    assert not wrong


def in_children(count: int, work: object) -> list[bool]:
    """Whether `work` gave True in each of `count` forked processes that run at once."""
    assert callable(work)
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if work() else 2
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children]
