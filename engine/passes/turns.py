"""Texts that were computed in another history, as rows that a prompt may reuse like those of an image's entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.chains.held import Turn
from engine.families.base import Family
from engine.passes.compile import value_norms
from engine.passes.rotation import rotate_back
from engine.prompt.layout import Span, TextSpan


@dataclass(frozen=True, slots=True)
class TextKV:
    """Rows of a text on the model's device: `keys` before RoPE and `values` [layers, kv_heads, tokens, head_dim],
    `value_norms` [layers, tokens] float32."""

    keys: torch.Tensor
    values: torch.Tensor
    value_norms: torch.Tensor


def text_entries(family: Family, turns: Sequence[Turn]) -> dict[Span, TextKV]:
    """Each run of `turns` (ascending) that follow one another, with its rows."""
    runs: list[list[Turn]] = []
    for turn in turns:
        if runs and runs[-1][-1].stop == turn.start:
            runs[-1].append(turn)
        else:
            runs.append([turn])
    return {TextSpan(run[0].start, run[-1].stop): _joined(family, run) for run in runs}


def _joined(family: Family, run: Sequence[Turn]) -> TextKV:
    keys = torch.cat([_before_rope(family, turn) for turn in run], dim=2)
    values = torch.cat([turn.held.values[:, :, : turn.tokens] for turn in run], dim=2)
    return TextKV(keys, values, value_norms(values))


def _before_rope(family: Family, turn: Turn) -> torch.Tensor:
    """Text stands at the same position on all axes."""
    positions = torch.arange(turn.position, turn.position + turn.tokens).expand(3, -1)
    return rotate_back(turn.held.keys[:, :, : turn.tokens], family.rope(positions))
