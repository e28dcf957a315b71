"""The chains that are held: found by what a prompt begins with, bounded in bytes, the least recently used goes first.

Segments lie in one dictionary by quality and name. That it is a tree follows from the names: sequences that begin
alike name their common head alike, so it is there once. The order of the dictionary is the order of use, and of one
sequence the last segment counts as used before the first: what is first in the dictionary has nothing behind it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from engine.chains.counts import Counts
from engine.chains.groups import Groups
from engine.chains.held import EXACT, NO_MATCH, Computed, Held, Match, Taken
from engine.chains.segments import Content, Segment, segments_of
from engine.chains.texts import Texts
from engine.chains.turns import Turns
from engine.figures import ChainStats


class Chains:
    """Thread-safe. `budget` bytes at most are held, less where `leave_room` says so; 0 holds nothing."""

    def __init__(self, budget: int, clock: Callable[[], float] = time.time) -> None:
        self.budget = budget
        self._room = budget
        self._epoch = 0
        self._clock = clock
        self._held: OrderedDict[tuple[str, bytes], Held] = OrderedDict()
        self._texts = Texts()
        self._turns = Turns()
        self._bytes = 0
        self._digests: dict[bytes, Held] = {}
        self._outdone: set[bytes] = set()
        self._counts = Counts()
        self._groups = Groups()
        self._lock = threading.RLock()

    @property
    def room(self) -> int:
        """Bytes that may be held now."""
        return self._room

    @property
    def epoch(self) -> int:
        """Grows with `outdate`: what began before is not kept any more."""
        return self._epoch

    def find(
        self,
        content: Content,
        length: int,
        recipe: str | None,
        count: bool = True,
        group: bytes | None = None,
    ) -> Match:
        """The longest chain that the first `length` slots begin with, leased until `release`. Segments of quality
        `recipe` serve beside exact ones; None: exact ones only. `count`: a request asks. `group`: what was
        kept for it counts as used."""
        if not self.budget:
            return NO_MATCH
        with self._lock:
            for held in self._groups.newest(group):
                self._use(held)
            taken = list(self._walk(content, length, _qualities(recipe)))
            for part in reversed(taken):
                part.held.leases += 1
                part.held.uses += count
                self._use(part.held)
            match = Match.of(taken)
            if count:
                self._counts.went_on(match)
            return match

    def find_turns(self, match: Match, content: Content, stop: int, recipe: str | None) -> Match:
        """`match` with the texts behind it, up to slot `stop`, that are held of other histories, and those of its own
        that have stale rows; they are leased as it is."""
        with self._lock:
            turns = self._turns.of(match, content, stop, _qualities(recipe))
            for turn in turns:
                turn.held.leases += 1
                self._use(turn.held)
            return replace(match, turns=turns)

    def release(self, match: Match) -> None:
        """The rows have been copied. Once for each `find`."""
        with self._lock:
            for part in match.taken:
                part.held.leases -= 1
            for turn in match.turns:
                turn.held.leases -= 1

    def extend(self, match: Match, found: Taken, since: int) -> Match | None:
        """`match`, which is leased, gone on with a segment that was not held: it is now, and leased too. None where
        there is no room, or chains were outdated meanwhile."""
        held = found.held
        with self._lock:
            if since != self._epoch:
                return None
            kept = self._held.get(held.key)
            if kept is None or kept.rows < held.rows:
                if not self._add(held, None, ()):
                    return None
                kept = held
            kept.leases += 1
            kept.uses += 1
            self._use(kept)
            taken = list(match.taken)
            if taken and taken[-1].start == held.segment.start:
                taken.pop().held.leases -= 1
            further = Match.of([*taken, Taken(kept, found.tokens)])
            self._counts.went_further(match, further)
            return further

    def lost(self, reason: str) -> None:
        """A record of a chain could not be used, and why."""
        with self._lock:
            self._counts.lost[reason] += 1

    def write_out(
        self,
        content: Content,
        recipe: str | None,
        since: int,
        write: Callable[[Segment, Taken, bool], None],
        discard: Callable[[bytes], None],
    ) -> None:
        """Have what is held of a sequence written: `write` gets each segment with what holds it and whether it is the
        last, `discard` the digests of records that were outdone. Neither may block; no `outdate` comes in between."""
        with self._lock:
            if not self.budget or since != self._epoch:
                return
            for digest in self._outdone:
                discard(digest)
            self._outdone.clear()
            parts: list[tuple[Segment, Taken]] = []
            for segment in segments_of(content, len(content.ids)):
                taken = self._taken(content, segment, _qualities(recipe))
                # A record's rows are all of its own history.
                if taken is None or taken.stale is not None:
                    break
                parts.append((segment, taken))
            for place, (segment, taken) in enumerate(parts, 1):
                write(segment, taken, place == len(parts))

    def every(self) -> list[Held]:
        """All segments, least recently used first."""
        with self._lock:
            return list(self._held.values())

    def of_digest(self, digest: bytes) -> Held | None:
        return self._digests.get(digest)

    def evict(self, digest: bytes, reason: str) -> bool:
        """Drop one segment; who is about to read it keeps it. False if there was none."""
        with self._lock:
            held = self._digests.get(digest)
            if held is not None:
                self._drop(held, reason)
            return held is not None

    def keep(
        self,
        content: Content,
        computed: Computed,
        recipe: str | None,
        since: int,
        group: bytes | None = None,
    ) -> None:
        """Hold copies of what was computed; what is not exact is held as `recipe`, or not at all where there is none.
        What does not fit ends it: chains have no gaps. Nothing is held where the epoch is not `since` any more.
        `group`: what it is held for."""
        with self._lock:
            if not self.budget or since != self._epoch:
                return
            path: list[Held] = []
            for segment in segments_of(content, len(computed.fresh)):
                quality = computed.quality(segment, recipe)
                if quality is None:
                    break
                held = self._already(content, segment, quality, computed.rows(segment))
                if held is None:
                    held = computed.held(content, segment, quality, self._clock())
                    if not self._add(held, recipe, path):
                        break
                path.append(held)
            for held in reversed(path):
                self._use(held)
                self._groups.join(held, group)

    def leave_room(self, nbytes: int | None) -> None:
        """Hold `nbytes` at most until the next call, within the budget (None: the budget): requests need the memory."""
        with self._lock:
            self._room = self.budget if nbytes is None else min(self.budget, max(0, nbytes))
            self._shrink(self._room, ())

    def outdate(self) -> None:
        """Have nothing kept or written of what began before."""
        with self._lock:
            self._epoch += 1

    def stats(self) -> ChainStats:
        with self._lock:
            leases = sum(held.leases for held in self._held.values())
            return self._counts.stats(len(self._held), self._bytes, self.budget, leases)

    def _walk(self, content: Content, length: int, qualities: Sequence[str]) -> Iterator[Taken]:
        for segment in segments_of(content, length):
            taken = self._taken(content, segment, qualities)
            if taken is not None:
                yield taken
            if taken is None or taken.tokens < segment.tokens:
                return

    def _taken(self, content: Content, segment: Segment, qualities: Sequence[str]) -> Taken | None:
        """What is held of a segment: all of it, or the beginning of a text."""
        for quality in qualities:
            held = self._held.get((quality, segment.name))
            if held is not None:
                return Taken(held, segment.tokens)
        if segment.image:
            return None
        return self._texts.beginning(content.ids[segment.start : segment.stop], segment.before, qualities)

    def _already(self, content: Content, segment: Segment, quality: str, rows: int) -> Held | None:
        """What is held of a segment that is to be kept with so many `rows`, where that is as much or as good."""
        exact = self._held.get((EXACT, segment.name))
        if exact is not None:
            return exact
        held = self._held.get((quality, segment.name))
        if held is not None and (held.rows >= rows or held.leases):
            return held
        if segment.image:
            return None
        return self._texts.longer(content.ids[segment.start : segment.stop], segment.before, quality, rows)

    def _add(self, held: Held, recipe: str | None, path: Sequence[Held]) -> bool:
        """Take a segment in, in the place of what it outdoes; False if there is no room for it."""
        for outdone in self._outdone_by(held, recipe):
            self._drop(outdone, "outdone")
            if outdone.quality != EXACT:
                self._outdone |= outdone.written
        self._shrink(self._room - held.nbytes, path)
        if self._bytes + held.nbytes > self._room:
            return False
        self._held[held.key] = self._digests[held.digest] = held
        self._bytes += held.nbytes
        if not held.segment.image:
            self._texts.add(held)
            self._turns.add(held)
        return True

    def _outdone_by(self, held: Held, recipe: str | None) -> list[Held]:
        """The same segment with fewer rows or as `recipe` left it, and a shorter text with the same beginning."""
        same = [
            self._held.get((quality, held.segment.name))
            for quality in (held.quality, recipe)
            if quality is not None
        ]
        shorter = [] if held.segment.image else self._texts.shorter(held)
        outdone = dict.fromkeys([other for other in same if other is not None] + shorter)
        return [other for other in outdone if not other.leases]

    def _shrink(self, nbytes: int, path: Sequence[Held]) -> None:
        """Evict, least recently used first, until `nbytes` are held; what is leased or in `path` stays."""
        if self._bytes <= nbytes:
            return
        staying = {held.key for held in path}
        for held in list(self._held.values()):
            if self._bytes <= nbytes:
                return
            if not held.leases and held.key not in staying:
                self._drop(held, "capacity")

    def _drop(self, held: Held, reason: str) -> None:
        del self._held[held.key], self._digests[held.digest]
        self._groups.leave(held)
        self._bytes -= held.nbytes
        self._counts.evicted[reason] += 1
        if not held.segment.image:
            self._texts.drop(held)
            self._turns.remove(held)

    def _use(self, held: Held) -> None:
        held.last_used = self._clock()
        if self._held.get(held.key) is held:
            self._held.move_to_end(held.key)


def _qualities(recipe: str | None) -> list[str]:
    return [EXACT] if recipe is None else [EXACT, recipe]
