"""Texts by what stands right before them: what a prompt can reuse of its turns where the history was edited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from engine.chains.held import EXACT, Held, Match, Turn
from engine.chains.segments import Content, common_head, segments_of
from engine.prompt.layout import Ints

# Fewer are sooner computed than taken, and marks between images would each count as an image to policies.
LEAST_TOKENS = 8


class Turns:
    """Finds held texts. One that stands right behind an edit is never found: the image and the run before its own are
    part of what it is found by. Names begin at a tenant's root, so none is found across tenants or salts."""

    def __init__(self) -> None:
        self._by_turn: dict[bytes, list[Held]] = defaultdict(list)

    def add(self, held: Held) -> None:
        if held.segment.turn:
            self._by_turn[held.segment.turn].append(held)

    def remove(self, held: Held) -> None:
        """Of what has been added."""
        turn = held.segment.turn
        if turn:
            self._by_turn[turn].remove(held)
            if not self._by_turn[turn]:
                del self._by_turn[turn]

    def of(self, match: Match, content: Content, stop: int, qualities: Sequence[str]) -> tuple[Turn, ...]:
        """What a prompt may reuse up to slot `stop`: stale texts of its own chain, and held ones behind it."""
        stale = [Turn(part.held, part.start, part.tokens) for part in match.rest if part.stale is not None]
        return (*stale, *self.find(content, match.length, stop, qualities))

    def find(self, content: Content, start: int, stop: int, qualities: Sequence[str]) -> Iterator[Turn]:
        """What is held of the texts in slots [start, stop), in order."""
        for segment in segments_of(content, stop):
            if segment.turn and segment.start >= start:
                ids = content.ids[segment.start : segment.stop]
                held = self._best(ids, segment.turn, qualities)
                tokens = 0 if held is None else common_head(ids, held.ids)
                if held is not None and tokens >= LEAST_TOKENS:
                    yield Turn(held, segment.start, tokens)

    def _best(self, ids: Ints, turn: bytes, qualities: Sequence[str]) -> Held | None:
        """The longest text; of equal ones an exact one, then the freshest."""
        begun = [held for held in self._by_turn.get(turn, ()) if held.quality in qualities]
        return max(
            begun,
            key=lambda held: (common_head(ids, held.ids), held.quality == EXACT, held.rows),
            default=None,
        )
