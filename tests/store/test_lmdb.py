"""What only the disk tier can get wrong: group E of the fault list on a real LMDB."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from store.errors import Rejected, TierFull, TierUnavailable
from store.open import assemble
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.lmdb import file as lmdb_file
from store.tiers.lmdb.file import DATA, fault_of, network_filesystem
from store.tiers.lmdb.tier import LmdbTier
from store.types import EntryFilter
from tests.store.samples import BlobCodec, content, decoded_of, entry_of, key_of, read, record_of, unused

MIB = 1 << 20
NOW = 2000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def tier(path: Path) -> Iterator[LmdbTier]:
    tier = LmdbTier(path, 32 * MIB)
    yield tier
    tier.close()


def filled(path: Path, count: int = 6) -> None:
    tier = LmdbTier(path, 32 * MIB)
    for number in range(count):
        tier.put(record_of(number, 2 * MIB), NOW + number, never_held)
    tier.close()


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )


class TestLayout:
    def test_pieces_fill_whole_pages(self, tier: LmdbTier, path: Path) -> None:
        record = record_of(1, 3 * PIECE_BYTES)
        tier.put(record, NOW, never_held)
        tier.close()
        with lmdb.open(str(path), max_dbs=3, readonly=True) as env, env.begin() as transaction:
            pieces = env.open_db(b"pieces", txn=transaction, create=False)
            lengths = [len(value) for _, value in transaction.cursor(db=pieces)]
            pages = transaction.stat(pieces)["overflow_pages"]
            page = env.stat()["psize"]
        assert lengths == [PIECE_BYTES] * 3
        assert pages * page == 3 * MIB

    def test_the_map_is_not_the_file(self, tier: LmdbTier, path: Path) -> None:
        tier.put(record_of(1), NOW, never_held)
        assert (path / DATA).stat().st_size < MIB

    def test_files_are_private(self, tier: LmdbTier, path: Path) -> None:
        tier.put(record_of(1), NOW, never_held)
        assert path.stat().st_mode & 0o077 == 0
        assert (path / DATA).stat().st_mode & 0o077 == 0

    def test_nothing_is_opened_before_the_first_use(self, path: Path) -> None:
        tier = LmdbTier(path, MIB)
        assert tier.opened_by is None and not path.exists()
        tier.close()
        assert not path.exists()


class TestFull:
    def test_e1_fill_a_64_mib_map_with_8_mib_values_and_go_on(self, path: Path) -> None:
        tier = LmdbTier(path, 60 * MIB, map_size=64 * MIB)
        refused = 0
        for number in range(14):
            record = record_of(number, 8 * MIB)
            try:
                tier.put(record, NOW + number, never_held)
            except TierFull as error:
                assert error.reason == "map_full"
                refused += 1
                assert not tier.contains(record.digest)
            else:
                found = read(tier, record.digest)
                assert found is not None and content(found) == content(record)
        assert refused <= 2
        assert tier.stats().entries >= 4
        tier.close()

    def test_e1_room_is_made_before_it_is_needed(self, tier: LmdbTier) -> None:
        for number in range(40):
            tier.put(record_of(number, 4 * MIB), NOW + number, never_held)
        stats = tier.stats()
        assert set(stats.evictions) == {"budget"}
        assert stats.bytes_logical <= 32 * MIB
        assert stats.bytes_physical <= 32 * MIB + 16 * MIB

    def test_a_write_that_fails_twice_leaves_nothing(self, path: Path) -> None:
        tier = LmdbTier(path, 60 * MIB, map_size=4 * MIB)
        with pytest.raises(TierFull, match="map_full"):
            tier.put(record_of(1, 8 * MIB), NOW, never_held)
        assert not tier.contains(key_of(1).digest)
        tier.put(record_of(2, 64), NOW, never_held)
        assert read(tier, key_of(2).digest) is not None
        tier.close()


class TestDamage:
    def test_e7_zeroed_bytes_in_a_value_are_a_counted_miss(self, path: Path) -> None:
        filled(path)
        data = bytearray((path / DATA).read_bytes())
        # Records 2 and 3 consist of twos, as the test codec clears the lowest bit; the file holds them in
        # order.
        at = data.find(b"\2" * 4096)
        data[at + 100 : at + 164] = bytes(64)
        (path / DATA).write_bytes(data)
        tier = LmdbTier(path, 32 * MIB)
        store = assemble([tier], BlobCodec(), MIB)
        with store.entries.fetch(key_of(2), lambda: entry_of(2, 2 * MIB)) as fetched:
            assert fetched.outcome == "corrupt"
            assert bytes(fetched.entry.data) == decoded_of(2, 2 * MIB)
        store.entries.flush(10)
        assert tier.stats().rejected == {"corrupt": 1}
        with store.entries.fetch(key_of(4), unused) as fetched:
            assert bytes(fetched.entry.data) == decoded_of(4, 2 * MIB)
        store.entries.close()

    def test_e7_a_damaged_manifest_is_removed_at_the_start(self, path: Path) -> None:
        filled(path, count=3)
        with lmdb.open(str(path), max_dbs=3, map_size=64 * MIB) as env:
            records = env.open_db(b"records")
            with env.begin(write=True) as transaction:
                head = bytearray(transaction.get(key_of(1).digest, db=records))
                head[-20] ^= 1
                transaction.put(key_of(1).digest, bytes(head), db=records)
        tier = LmdbTier(path, 32 * MIB)
        assert len(list(tier.rows())) == 2
        assert tier.stats().rejected == {"corrupt": 1}
        tier.close()
        assert pieces_in(path) == 2 * 3

    def test_a_missing_piece_is_torn(self, path: Path) -> None:
        filled(path, count=1)
        with lmdb.open(str(path), max_dbs=3, map_size=64 * MIB) as env:
            pieces = env.open_db(b"pieces")
            with env.begin(write=True) as transaction:
                transaction.delete(key_of(0).digest + (1).to_bytes(4, "big"), db=pieces)
        tier = LmdbTier(path, 32 * MIB)
        with pytest.raises(Rejected) as caught:
            read(tier, key_of(0).digest)
        assert caught.value.reason == "torn"
        tier.close()

    def test_pieces_without_a_manifest_are_removed_at_the_start(self, path: Path) -> None:
        filled(path, count=2)
        with lmdb.open(str(path), max_dbs=3, map_size=64 * MIB) as env:
            records = env.open_db(b"records")
            with env.begin(write=True) as transaction:
                transaction.delete(key_of(0).digest, db=records)
        tier = LmdbTier(path, 32 * MIB)
        assert [row.digest for row in tier.rows()] == [key_of(1).digest]
        tier.close()
        assert pieces_in(path) == 3

    @pytest.mark.parametrize("cut", ["half", "tail", "meta", "one page"])
    def test_e8_a_truncated_file_is_put_aside_before_it_can_kill(self, path: Path, cut: str) -> None:
        filled(path)
        size = (path / DATA).stat().st_size
        left = {"half": size // 2, "tail": size - 2 * MIB, "meta": 4096, "one page": 100}[cut]
        os.truncate(path / DATA, left)
        tier = LmdbTier(path, 32 * MIB)
        store = assemble([tier], BlobCodec(), MIB)
        with store.entries.fetch(key_of(1), lambda: entry_of(1, 2 * MIB)) as fetched:
            assert fetched.outcome == "miss"
        assert store.entries.flush(10)
        assert any("started empty" in problem for problem in store.admin.stats().degraded)
        aside = [item for item in path.parent.iterdir() if "quarantine" in item.name]
        assert len(aside) == 1 and (aside[0] / DATA).stat().st_size == left
        assert tier.contains(key_of(1).digest)
        store.entries.close()

    def test_e8_a_file_that_is_short_is_walked_value_by_value(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(path)
        depths: list[bool] = []
        probe = lmdb_file._probe

        def watched(directory: Path, deep: bool) -> str | None:
            depths.append(deep)
            return probe(directory, deep)

        monkeypatch.setattr(lmdb_file, "_probe", watched)
        assert fault_of(path) is None
        assert probe(path, deep=True) is None
        os.truncate(path / DATA, (path / DATA).stat().st_size - 4096)
        assert "killed its reader" in (fault_of(path) or "")
        assert depths == [False, True]

    @pytest.mark.parametrize("content", [b"garbage" * 5000, b"\0" * 65536, b"SQLite format 3\0" * 600])
    def test_e8_a_foreign_file_is_put_aside(self, path: Path, content: bytes) -> None:
        path.mkdir()
        (path / DATA).write_bytes(content)
        tier = LmdbTier(path, 32 * MIB)
        tier.put(record_of(1), NOW, never_held)
        assert read(tier, key_of(1).digest) is not None
        assert "no LMDB file" in tier.problems()[0]
        tier.close()

    def test_e8_a_damaged_tree_is_put_aside(self, path: Path) -> None:
        filled(path)
        with (path / DATA).open("r+b") as stream:
            size = (path / DATA).stat().st_size
            noise = random.Random(1)
            for page in range(2, size // 4096):
                stream.seek(page * 4096)
                if stream.read(16)[10] in (1, 2):
                    stream.seek(page * 4096 + 8)
                    stream.write(noise.randbytes(4000))
        assert fault_of(path) is not None
        tier = LmdbTier(path, 32 * MIB)
        assert list(tier.rows()) == []
        assert tier.problems()
        tier.close()

    def test_only_the_newest_quarantined_copy_is_kept(self, path: Path) -> None:
        for _ in range(3):
            path.mkdir(exist_ok=True)
            (path / DATA).write_bytes(b"garbage" * 5000)
            tier = LmdbTier(path, 32 * MIB)
            tier.rows()
            tier.close()
        assert len([item for item in path.parent.iterdir() if "quarantine" in item.name]) == 1

    def test_a_sound_file_is_not_put_aside(self, path: Path) -> None:
        for turn in range(4):
            tier = LmdbTier(path, 32 * MIB)
            for number in range(turn * 5, turn * 5 + 5):
                tier.put(record_of(number, number * 100_000), NOW + number, never_held)
            tier.delete(key_of(turn * 5).digest)
            assert tier.problems() == ()
            tier.close()
        assert fault_of(path) is None

    def test_e10_a_copy_taken_in_mid_write_gives_no_wrong_data(self, path: Path, tmp_path: Path) -> None:
        tier = LmdbTier(path, 32 * MIB)
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                tier.put(record_of(number % 12, 2 * MIB), NOW + number, never_held, replace=True)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        served = 0
        for turn in range(3):
            copy = tmp_path / f"copy{turn}"
            copy.mkdir()
            if (path / DATA).exists():
                shutil.copyfile(path / DATA, copy / DATA)
            served += served_right(copy)
        stop.set()
        writer.join()
        tier.close()
        last = tmp_path / "last"
        last.mkdir()
        shutil.copyfile(path / DATA, last / DATA)
        assert served_right(last) > 0 and served >= 0

    def test_a_page_found_broken_in_use_switches_the_tier_off_until_a_restart(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(path, count=2)
        tier = LmdbTier(path, 32 * MIB)
        store = assemble([tier], BlobCodec(), 0)

        def broken(*_: object) -> None:
            raise lmdb.CorruptedError("page")

        monkeypatch.setattr("store.tiers.lmdb.tier._push", broken)
        with store.entries.fetch(key_of(0), lambda: entry_of(0)) as fetched:
            assert (fetched.outcome, fetched.reason) == ("miss", "lmdb broken")
        monkeypatch.undo()
        with store.entries.fetch(key_of(1), lambda: entry_of(1)) as fetched:
            assert fetched.outcome == "miss"
        stats = store.admin.stats()
        assert not stats.tiers[0].available
        assert any("a restart puts it aside" in problem for problem in stats.degraded)
        store.entries.close()
        again = LmdbTier(path, 32 * MIB)
        assert again.rows() == []
        assert "was found broken in use" in again.problems()[0]
        again.put(record_of(1), NOW, never_held)
        again.close()
        last = LmdbTier(path, 32 * MIB)
        assert len(last.rows()) == 1 and last.problems() == ()
        last.close()

    def test_a_directory_that_can_be_used_again_is(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"in the way")
        tier = LmdbTier(path, MIB)
        for _ in range(2):
            with pytest.raises(TierUnavailable):
                tier.rows()
        path.unlink()
        with pytest.raises(TierUnavailable):
            tier.rows()
        monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
        assert tier.rows() == [] and tier.problems() == ()
        tier.close()

    def test_an_unusable_directory_costs_the_tier_only(self, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_bytes(b"")
        store = assemble([LmdbTier(blocked / "store", MIB)], BlobCodec(), MIB)
        with store.entries.fetch(key_of(1), lambda: entry_of(1)) as fetched:
            assert (fetched.outcome, fetched.reason) == ("miss", "lmdb unreadable")
        stats = store.admin.stats()
        assert stats.degraded and not stats.tiers[0].available
        store.entries.close()


def pieces_in(path: Path) -> int:
    with lmdb.open(str(path), max_dbs=3, readonly=True) as env, env.begin() as transaction:
        return int(transaction.stat(env.open_db(b"pieces", txn=transaction, create=False))["entries"])


def served_right(path: Path) -> int:
    """Records that a store on `path` serves; each must be right."""
    tier = LmdbTier(path, 32 * MIB)
    served = 0
    for number in range(12):
        try:
            found = read(tier, key_of(number).digest)
        except Rejected:
            continue
        if found is not None:
            assert found.payload.tobytes() == decoded_of(number, 2 * MIB)
            served += 1
    tier.close()
    return served


# Newer Pythons warn of forking with threads about; that it works is what is tested.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestProcesses:
    def test_c12_hits_after_a_restart_with_another_hash_seed(self, path: Path) -> None:
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

    def test_e4_killed_readers_do_not_fill_the_table(self, path: Path) -> None:
        filled(path, count=1)
        program = """
import lmdb, sys, time
env = lmdb.open(sys.argv[1], max_dbs=3, readonly=True, max_readers=1024)
transaction = env.begin()
print("reading", flush=True)
time.sleep(60)
"""
        children = [
            subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
            for _ in range(3)
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

    def test_e4_the_timer_frees_slots_of_readers_that_died_meanwhile(self, path: Path) -> None:
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

    def test_e5_the_environment_belongs_to_the_process_that_uses_it(self, tier: LmdbTier) -> None:
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

    def test_e5_a_store_built_before_the_fork_works_after_it(self, path: Path) -> None:
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

    def test_e5_a_fork_during_a_read_leaves_the_child_without_the_tier(self, tier: LmdbTier) -> None:
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

    def test_two_processes_see_each_others_records(self, path: Path) -> None:
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

    def test_reads_go_on_while_the_tier_closes(self, path: Path) -> None:
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


@pytest.mark.parametrize(
    ("where", "kind"), [("share", "nfs4"), ("share/with blank", "fuse.sshfs"), ("local", None)]
)
def test_e20_a_network_file_system_is_told(tmp_path: Path, where: str, kind: str | None) -> None:
    escaped = str(tmp_path / "share/with blank").replace(" ", "\\040")
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/share nfs4 rw 0 0\nhost:/y {escaped} fuse.sshfs rw 0 0\n"
    )
    assert network_filesystem(tmp_path / where / "store", mounts) == kind
    assert network_filesystem(tmp_path, tmp_path / "nowhere") is None


def test_listing_by_tier_names_the_disk(tier: LmdbTier) -> None:
    store = assemble([tier], BlobCodec(), 0)
    store.entries.fetch(key_of(1), lambda: entry_of(1)).release()
    store.entries.flush(10)
    assert [info.tiers for info in store.admin.entries(EntryFilter()).entries] == [("lmdb",)]
