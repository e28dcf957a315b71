"""A store on a memory and a disk tier that can be made to fail, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.open import assemble
from store.residency.wishes import Wishes
from store.tiered import Fetched
from store.tiers.lmdb.tier import LmdbTier
from store.tiers.memory import MemoryTier
from store.types import EntryFilter
from tests.store.faulty import FaultyTier
from tests.store.samples import Blob, BlobCodec, Clock, decoded_of, entry_of, key_of

MIB = 1 << 20


class Stand:
    def __init__(
        self,
        path: Path,
        *,
        decoded: int = 8 * MIB,
        memory: int = 8 * MIB,
        queue: int = 8 * MIB,
        **options: Any,
    ) -> None:
        self.clock = Clock()
        self.path = path
        self.sizes = (decoded, memory, queue)
        self.options = options
        self.open()

    def open(self) -> None:
        decoded, memory, queue = self.sizes
        self.memory = FaultyTier(MemoryTier(memory))
        self.disk = FaultyTier(LmdbTier(self.path, 32 * MIB))
        store = assemble(
            [self.memory, self.disk],
            BlobCodec(),
            decoded,
            queue_bytes=queue,
            wishes=Wishes(self.path / "wishes.json", self.clock),
            clock=self.clock,
            **self.options,
        )
        self.entries, self.segments, self.admin = store.entries, store.segments, store.admin

    def close(self) -> None:
        for tier in (self.memory, self.disk):
            tier.fault = None
            tier.read_gate.set()
            tier.write_gate.set()
        self.entries.close()

    def reopen(self) -> None:
        self.entries.close()
        self.open()

    def forget_decoded(self) -> None:
        assert self.entries.flush(10)
        self.admin.evict(EntryFilter(tier="decoded"))

    def fetch(
        self, number: int, mode: Any = "auto", compile: Callable[[], Blob] | None = None, **key: Any
    ) -> Fetched[Blob]:
        return self.entries.fetch(key_of(number, **key), compile or (lambda: entry_of(number)), mode)

    def outcome(self, number: int, mode: Any = "auto", **key: Any) -> tuple[str, str | None]:
        """Outcome and tier of a request, whose entry must be right."""
        with self.fetch(number, mode, **key) as fetched:
            assert bytes(fetched.entry.data) == decoded_of(number)
            return fetched.outcome, fetched.tier


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Results or exceptions of `work` in `count` threads."""
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
