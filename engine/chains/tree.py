"""The chains that are held: found by what a prompt begins with, bounded in bytes, the least recently used goes first.

Segments lie in one dictionary by quality and name. That it is a tree follows from the names: sequences that begin
alike name their common head alike, so it is there once. The order of the dictionary is the order of use, and of one
sequence the last segment counts as used before the first: what is first in the dictionary has nothing behind it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence

from engine.chains.held import EXACT, NO_MATCH, Computed, Held, Mask, Match, Taken
from engine.chains.segments import Content, Segment, common_head, segments_of
from engine.messages import ChainStats
from store.records.keys import owner
from store.types import EvictResult


class Chains:
    """Thread-safe. `budget` bytes at most are held, less where `leave_room` says so; 0 holds nothing."""

    def __init__(self, budget: int, clock: Callable[[], float] = time.time) -> None:
        self.budget = budget
        self._room = budget
        self._epoch = 0
        self._clock = clock
        self._held: OrderedDict[tuple[str, bytes], Held] = OrderedDict()
        self._texts: dict[tuple[str, bytes], list[Held]] = defaultdict(list)
        self._bytes = 0
        self._asked = self._matched = 0
        self._tokens: Counter[str] = Counter()
        self._evicted: Counter[str] = Counter()
        self._lock = threading.RLock()

    @property
    def room(self) -> int:
        """Bytes that may be held now."""
        return self._room

    @property
    def epoch(self) -> int:
        """Grows when chains are cleared: what began before is not kept any more."""
        return self._epoch

    def find(self, content: Content, length: int, recipe: str | None, count: bool = True) -> Match:
        """The longest chain that the first `length` slots begin with, leased until `release`. Segments of quality
        `recipe` serve beside exact ones; None: exact ones only. `count`: a request asks."""
        if not self.budget:
            return NO_MATCH
        with self._lock:
            taken = list(self._walk(content, length, [EXACT] if recipe is None else [EXACT, recipe]))
            for part in reversed(taken):
                part.held.leases += 1
                self._use(part.held)
            exact = next((i for i, part in enumerate(taken) if part.held.quality != EXACT), len(taken))
            match = Match(tuple(taken[:exact]), tuple(taken[exact:]))
            if count:
                self._count(match)
            return match

    def release(self, match: Match) -> None:
        """The rows have been copied. Once for each `find`."""
        with self._lock:
            for part in (*match.head, *match.rest):
                part.held.leases -= 1

    def keep(self, content: Content, computed: Computed, recipe: str | None, since: int) -> None:
        """Hold copies of what was computed; what is not exact is held as `recipe`, or not at all where there is none.
        What does not fit ends it: chains have no gaps. Nothing is held where the epoch is not `since` any more."""
        with self._lock:
            if not self.budget or since != self._epoch:
                return
            path: list[Held] = []
            for segment in segments_of(content, len(computed.fresh)):
                quality = computed.quality(segment, recipe)
                if quality is None:
                    break
                held = self._already(content, segment, quality, computed.wanted(segment))
                if held is None:
                    held = computed.held(content, segment, quality, self._clock())
                    if not self._add(held, recipe, path):
                        break
                path.append(held)
            for held in reversed(path):
                self._use(held)

    def leave_room(self, nbytes: int | None) -> None:
        """Hold `nbytes` at most until the next call, within the budget (None: the budget): requests need the memory."""
        with self._lock:
            self._room = self.budget if nbytes is None else min(self.budget, max(0, nbytes))
            self._shrink(self._room, ())

    def clear(self, tenant: str | None = None) -> EvictResult:
        """Drop all chains, or all of one tenant (with the parts of his space), but those in use."""
        with self._lock:
            self._epoch += 1
            every = list(self._held.values())
            theirs = [held for held in every if tenant in (None, held.tenant, owner(held.tenant))]
            dropped = [held for held in theirs if not held.leases]
            for held in dropped:
                self._drop(held, "admin")
            keys = tuple(held.digest.hex() for held in dropped)
            leased = len(theirs) - len(dropped)
            return EvictResult(keys, sum(held.nbytes for held in dropped), leased, dry_run=False)

    def stats(self) -> ChainStats:
        with self._lock:
            return ChainStats(
                segments=len(self._held),
                bytes=self._bytes,
                bytes_budget=self.budget,
                leases=sum(held.leases for held in self._held.values()),
                requests=self._asked,
                matched=self._matched,
                exact_tokens=self._tokens["exact"],
                refreshed_tokens=self._tokens["refreshed"],
                evictions=dict(self._evicted),
            )

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
        ids = content.ids[segment.start : segment.stop]
        begun = [other for quality in qualities for other in self._texts.get((quality, segment.before), ())]
        best = max(begun, key=lambda other: common_head(ids, other.ids), default=None)
        tokens = 0 if best is None else common_head(ids, best.ids)
        return None if best is None or tokens == 0 else Taken(best, tokens)

    def _already(self, content: Content, segment: Segment, quality: str, rows: Mask | None) -> Held | None:
        """What is held of a segment that is to be kept, where that is as much or as good."""
        exact = self._held.get((EXACT, segment.name))
        if exact is not None:
            return exact
        held = self._held.get((quality, segment.name))
        if held is not None and (rows is None or held.rows >= rows.sum() or held.leases):
            return held
        if segment.image:
            return None
        ids = content.ids[segment.start : segment.stop]
        longer = self._texts.get((quality, segment.before), ())
        return next((other for other in longer if common_head(ids, other.ids) == len(ids)), None)

    def _add(self, held: Held, recipe: str | None, path: Sequence[Held]) -> bool:
        """Take a segment in, in the place of what it outdoes; False if there is no room for it."""
        for outdone in self._outdone_by(held, recipe):
            self._drop(outdone, "outdone")
        self._shrink(self._room - held.nbytes, path)
        if self._bytes + held.nbytes > self._room:
            return False
        self._held[held.key] = held
        self._bytes += held.nbytes
        if not held.segment.image:
            self._texts[held.quality, held.segment.before].append(held)
        return True

    def _outdone_by(self, held: Held, recipe: str | None) -> list[Held]:
        """The same segment with fewer rows or as `recipe` left it, and a shorter text with the same beginning."""
        same = [
            self._held.get((quality, held.segment.name))
            for quality in (held.quality, recipe)
            if quality is not None
        ]
        shorter = [
            other
            for other in self._texts.get((held.quality, held.segment.before), ())
            if common_head(held.ids, other.ids) == len(other.ids)
        ]
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
        del self._held[held.key]
        self._bytes -= held.nbytes
        self._evicted[reason] += 1
        if not held.segment.image:
            siblings = self._texts[held.quality, held.segment.before]
            siblings.remove(held)
            if not siblings:
                del self._texts[held.quality, held.segment.before]

    def _use(self, held: Held) -> None:
        held.last_used = self._clock()
        if self._held.get(held.key) is held:
            self._held.move_to_end(held.key)

    def _count(self, match: Match) -> None:
        self._asked += 1
        self._matched += match.length > 0
        self._tokens["exact"] += match.exact
        self._tokens["refreshed"] += sum(len(part.slots()) for part in match.rest)
