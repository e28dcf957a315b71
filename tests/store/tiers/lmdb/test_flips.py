"""One bit of the file turned over while a process has it open: the process may die of it once, the next does not, and
nothing wrong is ever served."""

from __future__ import annotations

import random
import shutil
import signal
import struct
from collections import Counter
from pathlib import Path

import pytest

from store.tiers.lmdb.file import ASIDE, DATA
from tests.store.stand import in_threads
from tests.store.tiers.lmdb.pages import PAGE, flip, kinds
from tests.store.tiers.lmdb.worker import Worker, fill

KINDS = ("first meta", "second meta", "free", "branch", "leaf", "overflow")
FATAL = {
    f"died {-number}"
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE, signal.SIGILL)
}
FLIPS = 1000
WORKERS = 2


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flips") / "store"
    fill(path)
    return path


class Bench:
    """Flips bits of copies of a store, under a worker that goes from one to the next."""

    def __init__(self, template: Path, folder: Path) -> None:
        self._template = template
        self._folder = folder
        self._worker = Worker()
        self.seen: Counter[str] = Counter()

    def close(self) -> None:
        self._worker.end()

    def flip(self, name: str, chance: random.Random, kind: str) -> None:
        """Whatever is turned over, and wherever."""
        path = self._copy(name)
        assert self._ask(f"open {path}") == "ok"
        data = path / DATA
        found = kinds(data)
        pages = {"first meta": [0], "second meta": [1]}.get(kind) or found[kind]
        # Half of them where a page says what it is.
        bit = chance.randrange(160 * 8 if chance.random() < 0.5 else PAGE * 8)
        page = chance.choice(pages)
        flip(data, page, bit)
        self._use(path, f"{name}: bit {bit} of page {page} ({kind})")
        shutil.rmtree(path)

    def _use(self, path: Path, what: str) -> None:
        first = self._ask("work first")
        if first == "ok":
            first = self._ask("close")
        assert first == "ok" or first in FATAL, (what, first)
        self.seen[first] += 1
        for order in (f"open {path}", "work second", "close"):
            assert self._ask(order) == "ok", (what, first, order)
        self.seen["put aside"] += (path / (DATA + ASIDE)).exists()

    def _copy(self, name: str) -> Path:
        return Path(shutil.copytree(self._template, self._folder / name))

    def _ask(self, order: str) -> str:
        answer = self._worker.ask(order)
        if answer.startswith("died"):
            self._worker = Worker()
        return answer


def test_h2_a_bit_of_the_free_list_kills_one_worker_and_no_second(template: Path, tmp_path: Path) -> None:
    """The number of a transaction, in the future now: LMDB ends the process that writes next (SIGABRT)."""
    path = Path(shutil.copytree(template, tmp_path / "store"))
    worker = Worker()
    assert worker.ask(f"open {path}") == "ok"
    raw = (path / DATA).read_bytes()
    page = kinds(path / DATA)["free"][0]
    (node,) = struct.unpack_from("<H", raw, page * PAGE + 16)
    flip(path / DATA, page, (node + 8) * 8 + 9)
    assert worker.ask("work first") == f"died {-signal.SIGABRT}"
    for _ in range(2):
        worker = Worker()
        for order in (f"open {path}", "work second", "close"):
            assert worker.ask(order) == "ok"
        worker.end()
    assert (path / (DATA + ASIDE)).exists()


@pytest.mark.slow
def test_1000_random_flips_under_a_worker_that_is_alive(template: Path, tmp_path: Path) -> None:
    benches = [Bench(template, tmp_path) for _ in range(WORKERS)]

    def work(mine: int) -> None:
        for number in range(mine, FLIPS, WORKERS):
            benches[mine].flip(str(number), random.Random(number), KINDS[number // WORKERS % len(KINDS)])

    failures = in_threads(WORKERS, work)
    for bench in benches:
        bench.close()
    assert failures == [None] * WORKERS
    seen = benches[0].seen + benches[1].seen
    assert seen["ok"] + sum(seen[end] for end in FATAL) == FLIPS
    # Many bits mean nothing; but if none did, nothing would be tried here.
    assert seen["put aside"] > FLIPS // 10
