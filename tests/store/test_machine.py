"""The tiered store against a dict: whatever is done to it in whatever order, it serves the right bytes, and
while its tiers work it has exactly what it should."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from store.open import assemble
from store.tiers.lmdb.tier import LmdbTier
from store.tiers.memory import MemoryTier
from store.types import EntryFilter
from tests.store.faulty import FaultyTier
from tests.store.samples import Blob, BlobCodec, Clock, decoded_of, entry_of, key_of

NUMBERS = st.integers(0, 5)
TENANTS = ("acme", "rival")


class StoreMachine(RuleBasedStateMachine):
    """`versions` is what the store must hold, by number; a rewrite makes a new version. After a fault a tier
    may have missed writes, so until the next clean start only the bytes are checked, against every version
    there was."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.clock = Clock()
        self.versions: dict[int, int] = {}
        self.newest: dict[int, int] = {}
        self.exact = True

    @initialize(decoded=st.sampled_from([0, 700, 1 << 20]), memory=st.sampled_from([0, 2500, 1 << 20]))
    def start(self, decoded: int, memory: int) -> None:
        self.sizes = (decoded, memory)
        self.open()

    def open(self) -> None:
        decoded, memory = self.sizes
        self.tiers = [
            FaultyTier(MemoryTier(memory)),
            FaultyTier(LmdbTier(self.directory / "store", 1 << 22)),
        ]
        self.store = assemble(self.tiers, BlobCodec(), decoded, clock=self.clock)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.tiers[0].write_gate.set()
            self.store.entries.close()
        shutil.rmtree(self.directory)

    def content(self, number: int, version: int) -> int:
        return 100 * version + number

    def tenant(self, number: int) -> str:
        return TENANTS[number % 2]

    def right(self, number: int, data: bytes, version: int) -> bool:
        if self.exact:
            return data == decoded_of(self.content(number, version))
        versions = range(self.newest.get(number, 0) + 1)
        return any(data == decoded_of(self.content(number, v)) for v in versions)

    @rule(number=NUMBERS, mode=st.sampled_from(["auto", "auto", "read", "bypass"]))
    def fetch(self, number: int, mode: str) -> None:
        fresh = self.newest.get(number, 0)
        key = key_of(number, tenant=self.tenant(number))
        with self.store.entries.fetch(key, lambda: entry_of(self.content(number, fresh)), mode) as fetched:  # type: ignore[arg-type]
            data = bytes(fetched.entry.data)
            outcome = fetched.outcome
        held = self.versions.get(number)
        if mode == "bypass":
            assert outcome == "bypass"
            assert data == decoded_of(self.content(number, fresh))
            return
        assert self.right(number, data, fresh if held is None else held)
        if self.exact:
            assert outcome == ("miss" if held is None else "hit")
        if mode == "auto":
            self.versions.setdefault(number, fresh)

    @rule(number=NUMBERS)
    def rewrite(self, number: int) -> None:
        version = self.newest[number] = self.newest.get(number, 0) + 1

        def compile() -> Blob:
            return entry_of(self.content(number, version))

        with self.store.entries.fetch(
            key_of(number, tenant=self.tenant(number)), compile, "rewrite"
        ) as fetched:
            assert bytes(fetched.entry.data) == decoded_of(self.content(number, version))
        self.versions[number] = version

    @rule(number=NUMBERS)
    def delete(self, number: int) -> None:
        self.tiers[0].write_gate.set()
        found = self.store.admin.delete(key_of(number, tenant=self.tenant(number)).hex)
        held = self.versions.pop(number, None)
        if self.exact:
            assert found == (held is not None)

    @rule(tenant=st.sampled_from(TENANTS), dry_run=st.booleans())
    def evict_tenant(self, tenant: str, dry_run: bool) -> None:
        self.settle()
        expected = {key_of(n, tenant=tenant).hex for n in self.versions if self.tenant(n) == tenant}
        result = self.store.admin.evict(EntryFilter(tenant=tenant), dry_run=dry_run)
        if self.exact:
            assert set(result.keys) == expected
        if not dry_run:
            self.versions = {n: v for n, v in self.versions.items() if self.tenant(n) != tenant}

    @rule(tier=st.sampled_from(["decoded", "memory"]))
    def empty_a_faster_tier(self, tier: str) -> None:
        self.settle()
        self.store.admin.evict(EntryFilter(tier=tier))

    @rule()
    def restart(self) -> None:
        self.settle()
        for tier in self.tiers:
            tier.fault = None
        self.store.entries.close()
        self.open()
        listed = {info.key for info in self.store.admin.entries(EntryFilter()).entries}
        if self.exact:
            assert listed == {key_of(n, tenant=self.tenant(n)).hex for n in self.versions}
            return
        # What a failing tier missed is lost, or older; from here on the store is what it holds.
        for number in range(6):
            self.store.admin.delete(key_of(number, tenant=self.tenant(number)).hex)
        self.versions.clear()
        self.exact = True

    @rule(place=st.integers(0, 1), fault=st.sampled_from(["error", "full", "flip", "short", "drop"]))
    def break_a_tier(self, place: int, fault: str) -> None:
        self.settle()
        self.tiers[place].fault = fault
        self.exact = False

    @rule()
    def hold_back_writes(self) -> None:
        """What waits to be written must be readable meanwhile."""
        self.tiers[0].write_gate.clear()

    def settle(self) -> None:
        self.tiers[0].write_gate.set()
        assert self.store.entries.flush(60)

    @rule()
    def pass_time(self) -> None:
        self.clock.now += 10

    @invariant()
    def no_leases_are_left(self) -> None:
        if hasattr(self, "store"):
            assert self.store.entries._holds.leases == 0

    @rule()
    def what_must_be_there_is_listed(self) -> None:
        self.settle()
        if self.exact:
            for number in range(6):
                info = self.store.admin.entry(key_of(number, tenant=self.tenant(number)).hex)
                assert (info is not None) == (number in self.versions)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
