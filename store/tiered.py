"""What a request asks of the store: a cache of decoded entries above byte tiers.

A fetch looks at the decoded cache, then at the tiers in order, then compiles. What it finds is promoted; what
it compiles is written behind. One load or compile per key runs at a time. A tier that fails costs its hits,
nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Literal

from store.codecs.protocol import Codec, Prepared
from store.errors import InvalidKey, StoreClosed
from store.flights import Flight, Flights
from store.parts import Parts
from store.records.header import RecordInfo
from store.records.keys import VisualKey
from store.residency.decoded import E, Slot
from store.residency.holds import Lease
from store.residency.sightings import Sightings
from store.stack import Missed

Mode = Literal["auto", "read", "bypass", "rewrite"]
Outcome = Literal["hit", "miss", "outdated", "corrupt", "bypass"]


@dataclass(frozen=True, slots=True)
class Fetched(Generic[E]):
    """An entry and how it was come by; a lease on it until `release`, or until the `with` block ends.

    `tier` is where a hit came from ("decoded", "memory", ...), None for a compile. `bytes` is the size of the
    record (before it is written: of its payload). `load_seconds` includes waiting for another request that
    loads or compiles the same.
    """

    entry: E
    outcome: Outcome
    reason: str
    tier: str | None
    bytes: int
    load_seconds: float
    compile_seconds: float
    lease: Lease

    def release(self) -> None:
        """Idempotent. The entry's tensors stay valid for as long as somebody refers to them."""
        self.lease.release()

    def __enter__(self) -> Fetched[E]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class _Found(Generic[E]):
    """What a flight brings home. `unkept`: compiled and not stored, by request; a follower may still store
    it."""

    slot: Slot[E]
    outcome: Outcome
    reason: str
    tier: str | None
    load_seconds: float = 0.0
    compile_seconds: float = 0.0
    unkept: Prepared[E] | None = None


@dataclass(frozen=True, slots=True)
class _Ask(Generic[E]):
    """What one request wants. `keep`: whether an entry that was missing is stored."""

    key: VisualKey
    digest: bytes
    compile: Callable[[], E]
    keep: bool
    layout: object


class TieredStore(Generic[E]):
    """Thread-safe. `sightings`: an entry is written to the tiers only when it is asked for again; None: at once."""

    def __init__(self, parts: Parts[E], codec: Codec[E], sightings: Sightings | None = None) -> None:
        self._codec = codec
        self._clock = parts.clock
        self._holds = parts.holds
        self._wishes = parts.wishes
        self._buffers = parts.buffers
        self._decoded = parts.decoded
        self._flights: Flights[_Found[E]] = parts.flights
        self._stack = parts.stack
        self._compiles = parts.compiles
        self._sightings = sightings
        self._closed = False

    @property
    def codec_name(self) -> str:
        """What `ModelKey.codec` must say."""
        return self._codec.name

    def fetch(
        self, key: VisualKey, compile: Callable[[], E], mode: Mode = "auto", layout: object = None
    ) -> Fetched[E]:
        """The entry of `key`, compiled if need be; raises what `compile` raises.

        auto: read, and store what was missing. read: read, store nothing. bypass: neither. rewrite: compile
        and store. `layout`: what the codec's entries look like that the caller can use; a record of another one is
        a miss, None takes any.
        """
        if self._closed:
            raise StoreClosed("fetch from a closed store")
        if key.model.codec != self._codec.name:
            raise InvalidKey(f"the key is for codec {key.model.codec!r}, the store has {self._codec.name!r}")
        ask = _Ask(key, key.digest, compile, mode == "auto", layout)
        if mode == "bypass":
            slot, _, seconds = self._compile(ask)
            return _fetched(_Found(slot, "bypass", "bypass", None, 0.0, seconds), Lease(None, ask.digest))
        lease = self._holds.lease(ask.digest)
        try:
            found = self._rewrite(ask) if mode == "rewrite" else None
            while found is None:
                found = self._attempt(ask)
        except BaseException:
            lease.release()
            raise
        return _fetched(found, lease)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued is written; False if `timeout` seconds did not suffice."""
        self._wishes.save()
        return self._stack.flush(timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Write what is queued for at most `timeout` seconds, then close the tiers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stack.close(timeout)
        self._wishes.save()
        self._decoded.clear()

    def _attempt(self, ask: _Ask[E]) -> _Found[E] | None:
        """None if the request that was waited for failed: then this one tries again, perhaps in the lead."""
        started = time.perf_counter()
        found = self._ready(ask)
        if found is not None:
            return found
        flight, leading = self._flights.join(ask.digest)
        if leading:
            try:
                found = self._lead(flight, ask)
                flight.land(found)
                return found
            finally:
                self._flights.leave(flight)
        landed = flight.wait()
        if landed is None:
            return None
        if ask.keep and landed.unkept is not None:
            self._keep(landed.slot, landed.unkept)
        self._stack.touch(ask.digest, self._clock())
        waited = time.perf_counter() - started
        return _Found(landed.slot, "hit", "joined", landed.tier or self._decoded.name, waited)

    def _lead(self, flight: Flight[_Found[E]], ask: _Ask[E]) -> _Found[E]:
        """Load or compile for everybody who waits."""
        started = time.perf_counter()
        # The flight before this one may have landed between the look at the decoded cache and the join.
        found = self._ready(ask, count=False)
        if found is not None:
            return found
        now = self._clock()
        loaded = self._stack.load(ask.key, self._codec, ask.layout, now)
        if isinstance(loaded, Missed):
            slot, prepared, seconds = self._compile(ask)
            if ask.keep:
                self._flights.keep_unless_forgotten(flight, lambda: self._keep(slot, prepared))
            unkept = None if ask.keep else prepared
            return _Found(slot, loaded.outcome, loaded.reason, None, 0.0, seconds, unkept)
        slot = Slot(ask.digest, loaded.entry, loaded.info, loaded.bytes, now)
        self._flights.keep_unless_forgotten(flight, lambda: self._show(slot))
        self._stack.touch(ask.digest, now)
        return _Found(slot, "hit", "", loaded.tier, time.perf_counter() - started)

    def _ready(self, ask: _Ask[E], count: bool = True) -> _Found[E] | None:
        """From the decoded cache, or from what waits to be written."""
        now = self._clock()
        slot = self._decoded.get(ask.digest, now, count) or self._stack.writer.pending(ask.digest)
        if slot is None:
            return None
        if ask.keep and slot.unwritten is not None:
            self._write(replace(slot, unwritten=None), slot.unwritten, replace_old=False)
        self._stack.touch(ask.digest, now)
        return _Found(slot, "hit", "", self._decoded.name)

    def _rewrite(self, ask: _Ask[E]) -> _Found[E]:
        slot, prepared, seconds = self._compile(ask)
        # What is being loaded at this moment is older.
        self._flights.forget(ask.digest)
        self._keep(slot, prepared, replace_old=True)
        return _Found(slot, "miss", "rewrite", None, 0.0, seconds)

    def _compile(self, ask: _Ask[E]) -> tuple[Slot[E], Prepared[E], float]:
        """The entry as hits will give it, how to pack it, and the seconds it took."""
        started = time.perf_counter()
        prepared = self._codec.prepare(ask.compile())
        seconds = time.perf_counter() - started
        self._compiles.add()
        entry = prepared.entry
        now = self._clock()
        info = RecordInfo.of(ask.key, entry.tokens, now, seconds)
        return Slot(ask.digest, entry, info, self._codec.payload_bytes(entry), now), prepared, seconds

    def _keep(self, slot: Slot[E], prepared: Prepared[E], replace_old: bool = False) -> None:
        if not prepared.sound:
            self._stack.refuse(slot)
            return
        if self._sightings is not None and not replace_old and not self._sightings.again(slot.digest):
            self._show(replace(slot, unwritten=prepared))
            return
        self._write(slot, prepared, replace_old)

    def _write(self, slot: Slot[E], prepared: Prepared[E], replace_old: bool) -> None:
        self._show(slot)
        self._stack.store(slot, self._codec, prepared, replace_old)

    def _show(self, slot: Slot[E]) -> None:
        self._decoded.put(slot)
        self._buffers.trim()


def _fetched(found: _Found[E], lease: Lease) -> Fetched[E]:
    return Fetched(
        entry=found.slot.entry,
        outcome=found.outcome,
        reason=found.reason,
        tier=found.tier,
        bytes=found.slot.bytes,
        load_seconds=found.load_seconds,
        compile_seconds=found.compile_seconds,
        lease=lease,
    )
