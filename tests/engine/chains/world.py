"""Sequences whose KV can be told: the row of a slot is made of everything up to it, as a model's would be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.chains.held import Computed, Match
from engine.chains.segments import Content, root_of
from engine.chains.tree import Chains
from engine.families.span import grid_span
from engine.prompt.layout import place

IMAGE = 99
LAYERS, HEADS, WIDTH = 2, 1, 3
ROW_BYTES = 2 * LAYERS * HEADS * WIDTH * 4
# What stands at an image token: its picture and its size.
PICTURES = {"A": (b"A" * 32, 2, 2), "B": (b"B" * 32, 2, 2), "C": (b"C" * 32, 3, 5)}


@dataclass
class Sequence:
    """`parts` are words (token ids) and pictures (letters)."""

    content: Content
    keys: torch.Tensor
    values: torch.Tensor

    @property
    def length(self) -> int:
        return len(self.content.ids)

    @property
    def everything(self) -> np.ndarray:
        return np.ones(self.length, dtype=bool)


def sequence(*parts: int | str, tenant: str = "tenant") -> Sequence:
    pictures = [PICTURES[part] for part in parts if isinstance(part, str)]
    unplaced = [IMAGE if isinstance(part, str) else part for part in parts]
    ids, spans = place(unplaced, IMAGE, [(i, grid_span(IMAGE, h, w)) for i, (_, h, w) in enumerate(pictures)])
    content = Content(
        root_of("space", tenant, b"model"), tenant, ids, spans, tuple(digest for digest, _, _ in pictures)
    )
    keys = torch.stack([_row(content, slot) for slot in range(len(ids))], dim=2)
    return Sequence(content, keys, -keys)


def _row(content: Content, slot: int) -> torch.Tensor:
    """[layers, heads, width] that no other beginning has."""
    inside = [(s, d) for s, d in zip(content.spans, content.digests, strict=True) if s.start <= slot]
    seed = hash(
        (tuple(content.ids[: slot + 1].tolist()), tuple((s.start, s.shape.rows, d) for s, d in inside))
    )
    draw = torch.Generator().manual_seed(seed % 2**31)
    return torch.rand(LAYERS, HEADS, WIDTH, generator=draw)


def keep(
    chains: Chains,
    kept: Sequence,
    exact: int | None = None,
    recipe: str | None = None,
    fresh: np.ndarray | None = None,
) -> None:
    mask = kept.everything if fresh is None else fresh
    computed = Computed(kept.keys, kept.values, kept.length if exact is None else exact, mask)
    chains.keep(kept.content, computed, recipe, chains.epoch)


def find(chains: Chains, asked: Sequence, recipe: str | None = None, length: int | None = None) -> Match:
    """The match, its lease given back, checked against what the sequence's own rows are."""
    match = chains.find(asked.content, asked.length if length is None else length, recipe)
    chains.release(match)
    keys, values = torch.zeros_like(asked.keys), torch.zeros_like(asked.values)
    match.write_head(keys, values)
    match.write_rest(keys, values)
    given = torch.as_tensor(match.given(asked.length))
    assert torch.equal(keys[:, :, given], asked.keys[:, :, given])
    assert torch.equal(values[:, :, given], asked.values[:, :, given])
    assert not keys[:, :, ~given].any() and not values[:, :, ~given].any()
    return match
