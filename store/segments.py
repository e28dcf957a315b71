"""What chains ask of the store: segments written to the byte tiers behind a request, and found there again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from store.codecs.protocol import Format, Prepared
from store.parts import Parts
from store.records.header import RecordInfo
from store.records.keys import SegmentKey
from store.residency.decoded import E, Slot
from store.residency.sightings import Sightings
from store.residency.wishes import WishesFull
from store.stack import Missed
from store.writer import Job

_log = logging.getLogger(__name__)


class SegmentStore:
    """Thread-safe. Nothing here raises for what a tier did: what cannot be written or read is not there. `sightings`: a
    segment is written only when it is offered again; None: at once. Not `allowed`: nothing is written or read."""

    def __init__(self, parts: Parts[E], sightings: Sightings | None = None, allowed: bool = True) -> None:
        self._allowed = allowed
        self._stack = parts.stack
        self._wishes = parts.wishes
        self._clock = parts.clock
        self._sightings = sightings

    def __bool__(self) -> bool:
        """Whether there is any use in asking."""
        return self._allowed and bool(self._stack.tiers)

    def load(self, key: SegmentKey, format: Format[E], layout: object) -> E | Missed:
        """The segment of `key`, from what waits to be written or from the first tier that has it in that layout. What
        is damaged or foreign is removed there and counted; it is a miss."""
        digest, now = key.digest, self._clock()
        queued = self._stack.writer.pending(digest)
        if queued is not None:
            found: E = queued.entry
            return found
        # A prompt asks for several names where it ends to be known: that they are not there is no miss of a tier.
        if not self._stack.contains(digest):
            return Missed("miss", "absent")
        loaded = self._stack.load(key, format, layout, now)
        if isinstance(loaded, Missed):
            return loaded
        self._stack.touch(digest, now)
        return loaded.entry

    def offer(
        self, key: SegmentKey, format: Format[E], prepared: Prepared[E], seconds: float, replace: bool
    ) -> bool:
        """Have it written in the background, in the place of what is there or not; False if it is not: it was not seen
        before, or half of what may wait does already: the rest is for entries. `seconds` is what it cost to compute."""
        digest, now, entry = key.digest, self._clock(), prepared.entry
        if self._sightings is not None and not self._sightings.again(digest):
            return False
        slot = Slot(digest, entry, RecordInfo.of(key, entry.tokens, now, seconds), entry.nbytes, now)
        return self._stack.store(slot, format, prepared, replace, yielding=True)

    def touch(self, digests: Sequence[bytes]) -> None:
        """Count a use of each, the first one as the longest ago, behind what waits to be written."""

        def touch() -> None:
            for digest in digests:
                self._stack.touch(digest, self._clock())

        self._stack.writer.offer(Job(b"", 0, touch))

    def pin(self, digests: Sequence[bytes], seconds: float) -> None:
        """Have them evicted last for so long. Where there is no room for more pins, they go as others do."""
        until = self._clock() + seconds
        try:
            for digest in digests:
                self._wishes.pin(digest, until)
        except WishesFull as error:
            _log.warning("segments of a chain could not be pinned: %s", error)
        self._stack.writer.start()

    def discard(self, digest: bytes) -> None:
        """Have it removed in the background."""
        self._stack.discard(digest)
