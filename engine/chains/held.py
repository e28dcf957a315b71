"""Computed rows as chains hold them, and what of them serves a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine.chains.segments import Content, Segment
from engine.prompt.layout import Ints
from store.records.keys import segment_digest

Mask = NDArray[np.bool_]

# The quality of a segment whose rows all are what full prefill would have computed. Any other quality is the recipe
# (policy, options, ratio) that refreshed some of them.
EXACT = ""
# What a segment costs beside its tensors, so that empty ones count as well.
OVERHEAD_BYTES = 1024


@dataclass(slots=True, eq=False, weakref_slot=True)
class Held:
    """Rows of one segment. `keys` (rotated), `values` [layers, kv_heads, rows, head_dim] on the model's device, never
    written to. `offsets` [rows] says where in the segment the rows stand; None where there is one for every slot. `ids`
    are the tokens of a text segment, empty for an image. `as_stored`: the rows are those of the image's entry, rotated.
    `stale` [tokens] marks rows of a text that were taken from another history and not computed in this one; None where
    there are none. `leases` counts who is about to read it, `uses` who has; `group` is what it was kept for (see
    `Groups`); `written` are digests of the records that hold it, `digest` is what an operator calls it: other ones for
    every quality."""

    segment: Segment
    tenant: str
    quality: str
    ids: Ints
    offsets: torch.Tensor | None
    keys: torch.Tensor
    values: torch.Tensor
    created: float
    as_stored: bool = False
    last_used: float = 0.0
    leases: int = 0
    uses: int = 0
    group: bytes | None = None
    written: set[bytes] = field(default_factory=set)
    stale: Mask | None = None
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.digest = segment_digest(self.segment.name, self.quality)

    @property
    def key(self) -> tuple[str, bytes]:
        return self.quality, self.segment.name

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.ids.nbytes + OVERHEAD_BYTES

    @property
    def rows(self) -> int:
        """How many rows were computed in this history."""
        return int(self.keys.shape[2]) - self.stale_in(self.segment.tokens)

    def stale_in(self, tokens: int) -> int:
        """How many of the first `tokens` were not."""
        return 0 if self.stale is None else int(self.stale[:tokens].sum())


@dataclass(frozen=True, slots=True)
class Taken:
    """The first `tokens` slots of a held segment, which serve a prompt."""

    held: Held
    tokens: int

    @property
    def start(self) -> int:
        return self.held.segment.start

    @property
    def stop(self) -> int:
        return self.start + self.tokens

    @property
    def text(self) -> bool:
        return not self.held.segment.image

    @property
    def stale(self) -> Mask | None:
        """Which of the slots hold rows of another history [tokens]; None for none of them."""
        stale = None if self.held.stale is None else self.held.stale[: self.tokens]
        return stale if stale is not None and stale.any() else None

    def slots(self) -> Ints:
        """Slots whose rows were computed in this history, ascending."""
        if self.held.offsets is not None:
            return self.start + self.held.offsets.cpu().numpy()
        if self.stale is not None:
            return self.start + np.flatnonzero(~self.stale)
        return np.arange(self.start, self.stop)

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copy the rows into a request's keys and values [layers, kv_heads, capacity, head_dim]."""
        held = self.held
        if held.offsets is None:
            at = slice(self.start, self.stop)
            keys[:, :, at] = held.keys[:, :, : self.tokens]
            values[:, :, at] = held.values[:, :, : self.tokens]
        else:
            slots = self.start + held.offsets
            keys.index_copy_(2, slots, held.keys)
            values.index_copy_(2, slots, held.values)


@dataclass(frozen=True, slots=True)
class Turn:
    """The first `tokens` rows of a held text, which say at slot `start` of a prompt what they say where they are held,
    but were computed in another history. `position` is where the first of them was."""

    held: Held
    start: int
    tokens: int

    @property
    def stop(self) -> int:
        return self.start + self.tokens

    @property
    def position(self) -> int:
        return self.held.segment.position


@dataclass(frozen=True, slots=True)
class Match:
    """The longest chain that a prompt begins with: `head` is exact and without a gap from slot 0 on, `rest` goes on
    behind it with segments that a refresh left (or exact ones behind such). `turns` are texts whose rows may be reused,
    ascending: those of `rest` that have stale rows, and such as follow an edit."""

    head: tuple[Taken, ...] = ()
    rest: tuple[Taken, ...] = ()
    turns: tuple[Turn, ...] = ()

    @classmethod
    def of(cls, taken: Sequence[Taken]) -> Match:
        """Of segments in order, without a gap."""
        exact = next((i for i, part in enumerate(taken) if part.held.quality != EXACT), len(taken))
        return cls(tuple(taken[:exact]), tuple(taken[exact:]))

    @property
    def taken(self) -> tuple[Taken, ...]:
        return (*self.head, *self.rest)

    @property
    def exact(self) -> int:
        """Slots [0, exact) need no computing, whatever the policy."""
        return self.head[-1].stop if self.head else 0

    @property
    def length(self) -> int:
        """Slots [0, length) are in the chain."""
        return self.rest[-1].stop if self.rest else self.exact

    def given(self, length: int) -> Mask:
        """Which of a prompt's `length` slots have rows in the chain that were computed for its own history."""
        mask = np.zeros(length, dtype=bool)
        mask[: self.exact] = True
        for taken in self.rest:
            mask[taken.slots()] = True
        return mask

    def write_head(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        _write(self.head, keys, values)

    def write_rest(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        _write(self.rest, keys, values)


NO_MATCH = Match()


def _write(taken: Sequence[Taken], keys: torch.Tensor, values: torch.Tensor) -> None:
    for part in taken:
        part.write(keys, values)


@dataclass(frozen=True, slots=True)
class Computed:
    """What a request computed: rotated `keys`, `values` [layers, kv_heads, capacity, head_dim] with rows for the slots
    that `fresh` [slots] marks. Those before slot `exact` are what full prefill computes. `as_stored` are the slots at
    which images begin that have the rows of their entries."""

    keys: torch.Tensor
    values: torch.Tensor
    exact: int
    fresh: Mask
    as_stored: frozenset[int] = frozenset()

    def quality(self, segment: Segment, recipe: str | None) -> str | None:
        """What a segment may be held as: exact, as what `recipe` left, or (None) not at all."""
        return EXACT if segment.stop <= self.exact else recipe

    def rows(self, segment: Segment) -> int:
        """How many rows of a segment were computed."""
        exact = segment.stop <= self.exact
        return segment.tokens if exact else int(self.fresh[segment.start : segment.stop].sum())

    def wanted(self, segment: Segment) -> Mask | None:
        """Which rows of a segment are to be held [tokens]; None for all of them."""
        if segment.stop <= self.exact or not segment.image:
            return None
        return self.fresh[segment.start : segment.stop]

    def held(self, content: Content, segment: Segment, quality: str, now: float) -> Held:
        """A copy of a segment's rows."""
        wanted = self.wanted(segment)
        if wanted is None:
            offsets, at = None, slice(segment.start, segment.stop)
            keys, values = self.keys[:, :, at].clone(), self.values[:, :, at].clone()
        else:
            offsets = torch.as_tensor(np.flatnonzero(wanted), device=self.keys.device)
            slots = segment.start + offsets
            keys, values = self.keys.index_select(2, slots), self.values.index_select(2, slots)
        ids = content.ids[:0] if segment.image else content.ids[segment.start : segment.stop].copy()
        as_stored = quality == EXACT and segment.start in self.as_stored
        held = Held(segment, content.tenant, quality, ids, offsets, keys, values, now, as_stored)
        if not segment.image and self.rows(segment) < segment.tokens:
            held.stale = ~self.fresh[segment.start : segment.stop]
        return held
