"""A process that uses a store, and may die of it: `python -m tests.store.tiers.lmdb.worker`. It does what it is told on
stdin, a line at a time, and answers each line: `ok`, or what went wrong."""

from __future__ import annotations

import logging
import random
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from store.errors import Rejected, TierError
from store.residency.eviction import never_held
from store.tiers.lmdb import environment
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import decoded_of, key_of, read, record_of

BUDGET = 32 << 20
RECORDS = 150
LARGE = 60
PATIENCE = 60.0


def size_of(number: int) -> int:
    """Most records are small, so that there are many in a page and branches above them; one is so large that the list
    of its pages, when they are free, takes a page of its own."""
    if number == LARGE:
        return 1_200_000
    return 150_000 if number % 30 == 0 else 300


def fill(path: Path) -> None:
    """A store with pages of all kinds, and free ones."""
    tier = LmdbTier(path, BUDGET)
    for number in range(RECORDS):
        tier.put(record_of(number, size_of(number)), 2000.0 + number, never_held)
    for number in range(3, RECORDS, 7):
        tier.delete(key_of(number).digest)
    tier.delete(key_of(LARGE).digest)
    tier.close()


class Worker:
    """The other end."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, order: str) -> str:
        """The answer; "died" with its status if the process is no more, or had to be killed as it did not answer."""
        assert self._child.stdin is not None and self._child.stdout is not None
        with suppress(BrokenPipeError):
            print(order, file=self._child.stdin, flush=True)
        ready, _, _ = select.select([self._child.stdout], [], [], PATIENCE)
        answer = self._child.stdout.readline().strip() if ready else ""
        if not answer:
            self.end()
        return answer or f"died {self._child.returncode}"

    def end(self) -> None:
        self._child.kill()
        self._child.communicate()


class _Store:
    def __init__(self) -> None:
        self._tier = LmdbTier(Path("nowhere"), BUDGET)

    def open(self, path: str) -> None:
        self._tier = LmdbTier(Path(path), BUDGET)
        self._tier.stats()

    def read(self, _: str = "") -> None:
        for number in range(RECORDS + 10):
            try:
                found = read(self._tier, key_of(number).digest)
            except (Rejected, TierError):
                continue
            assert found is None or found.payload.tobytes() == decoded_of(number, size_of(number)), number

    def write(self, seed: str) -> None:
        chance = random.Random(seed)
        # The large ones take all pages that are free.
        for number in chance.sample([*range(0, RECORDS, 30), *range(1, RECORDS + 10, 9)], 16):
            try:
                if chance.random() < 0.4:
                    self._tier.delete(key_of(number).digest)
                else:
                    record = record_of(number, size_of(number))
                    self._tier.put(record, 3000.0 + number, never_held, replace=chance.random() < 0.5)
                self._tier.touch(key_of(number).digest, 4000.0)
            except TierError:
                continue

    def work(self, seed: str) -> None:
        """All that a service does with a store."""
        self.read()
        self.write(seed)
        self._tier.stats()
        self.read()

    def close(self, _: str) -> None:
        self._tier.close()


def main() -> None:
    logging.disable()
    environment._RETRY_SECONDS = 0.0
    store = _Store()
    orders: dict[str, Callable[[str], None]] = {
        "open": store.open,
        "work": store.work,
        "close": store.close,
    }
    for line in sys.stdin:
        order, _, argument = line.strip().partition(" ")
        try:
            orders[order](argument)
        except BaseException as error:
            print(f"wrong {type(error).__name__}: {error}", flush=True)
        else:
            print("ok", flush=True)


if __name__ == "__main__":
    main()
