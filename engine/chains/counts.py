"""What has happened to chains, counted."""

from __future__ import annotations

from collections import Counter

from engine.chains.held import Match
from engine.figures import ChainStats


class Counts:
    """Kept under the lock of the chains. `evicted` and `lost` (records that could not be used) are by reason; `loaded`
    are segments that came from the store's tiers."""

    def __init__(self) -> None:
        self.asked = self.matched = self.loaded = 0
        self.exact = self.refreshed = 0
        self.evicted: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def went_on(self, match: Match) -> None:
        """A request goes on from this, or from nothing."""
        self.asked += 1
        self._add(match, 1)

    def went_further(self, before: Match, match: Match) -> None:
        """The same request has more to go on from: what a tier had."""
        self.loaded += 1
        self._add(before, -1)
        self._add(match, 1)

    def stats(self, segments: int, nbytes: int, budget: int, leases: int) -> ChainStats:
        """With what is held now."""
        return ChainStats(
            segments=segments,
            bytes=nbytes,
            bytes_budget=budget,
            leases=leases,
            requests=self.asked,
            matched=self.matched,
            exact_tokens=self.exact,
            refreshed_tokens=self.refreshed,
            evictions=dict(self.evicted),
            loaded=self.loaded,
            lost=dict(self.lost),
        )

    def _add(self, match: Match, sign: int) -> None:
        self.matched += sign * (match.length > 0)
        self.exact += sign * match.exact
        self.refreshed += sign * sum(len(part.slots()) for part in match.rest)
