"""Held texts by what comes before them: of those that begin alike, which serves a prompt, and which is one too many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from engine.chains.held import Held, Taken
from engine.chains.segments import common_head
from engine.prompt.layout import Ints


class Texts:
    """Text segments of each quality, by the name of what is before them."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, bytes], list[Held]] = defaultdict(list)

    def add(self, held: Held) -> None:
        self._texts[held.quality, held.segment.before].append(held)

    def drop(self, held: Held) -> None:
        place = held.quality, held.segment.before
        self._texts[place].remove(held)
        if not self._texts[place]:
            del self._texts[place]

    def beginning(self, ids: Ints, before: bytes, qualities: Sequence[str]) -> Taken | None:
        """What begins as `ids` do for the most tokens."""
        begun = [held for quality in qualities for held in self._texts.get((quality, before), ())]
        best = max(begun, key=lambda held: common_head(ids, held.ids), default=None)
        tokens = 0 if best is None else common_head(ids, best.ids)
        return None if best is None or tokens == 0 else Taken(best, tokens)

    def longer(self, ids: Ints, before: bytes, quality: str, rows: int) -> Held | None:
        """One that begins with all of `ids`, of which at least `rows` were computed."""
        held = self._texts.get((quality, before), ())
        same = [other for other in held if common_head(ids, other.ids) == len(ids)]
        return next((other for other in same if len(ids) - other.stale_in(len(ids)) >= rows), None)

    def shorter(self, than: Held) -> list[Held]:
        """Those that `than` begins with."""
        held = self._texts.get((than.quality, than.segment.before), ())
        return [other for other in held if common_head(than.ids, other.ids) == len(other.ids)]
