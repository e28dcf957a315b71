"""M-RoPE: which of the three axes turns which channels of a key, on a grid where rows and columns differ.

CONDUIT's released code turns a restored Qwen2.5-VL key by sections of twice the length ([32, 48, 48] channels of 128)
where the model repeats the sections in each half of the head ([16, 24, 24, 16, 24, 24]); see the notes on the paper's
figures in `eval/results/report.md`.
"""

from __future__ import annotations

import pytest
import torch

from engine.families.base import Rope
from engine.passes.rotation import rotate
from tests.engine.conftest import Bench

SECTIONS, THETA, EDGE = (16, 24, 24), 1e6, 8


def angles(positions: torch.Tensor, channels: int, theta: float) -> torch.Tensor:
    """[axes, rows, channels], as if each axis turned all of them; channel c and c + channels / 2 are a pair."""
    frequencies = theta ** (-torch.arange(0, channels, 2).float() / channels)
    turns = positions[:, :, None].float() * frequencies
    return torch.cat((turns, turns), dim=-1)


def by_section(turns: torch.Tensor, sections: list[int]) -> torch.Tensor:
    """Channels in runs of `sections`, which take turns over the axes."""
    return torch.cat([part[i % 3] for i, part in enumerate(turns.split(sections, dim=-1))], dim=-1)


def grid(edge: int) -> torch.Tensor:
    rows, columns = torch.arange(edge**2) // edge, torch.arange(edge**2) % edge
    return torch.stack((torch.zeros_like(rows), rows, columns))


def test_each_half_of_a_head_is_shared_out_over_the_axes(bench: Bench) -> None:
    config = bench.family._decoder.config  # type: ignore[attr-defined]
    sections, theta = list(config.rope_parameters["mrope_section"]), config.rope_parameters["rope_theta"]
    turns = by_section(angles(grid(EDGE), bench.family.shape.head_dim, theta), sections * 2)
    rope = bench.family.rope(grid(EDGE))
    assert torch.allclose(rope.cos, turns.cos(), atol=1e-5) and torch.allclose(
        rope.sin, turns.sin(), atol=1e-5
    )
    doubled = by_section(
        angles(grid(EDGE), bench.family.shape.head_dim, theta), [2 * section for section in sections]
    )
    assert not torch.allclose(rope.cos, doubled.cos(), atol=0.1)


def test_doubled_sections_turn_keys_of_a_page_by_about_a_third_of_their_length() -> None:
    keys = torch.randn(1, EDGE**2, 128, generator=torch.Generator().manual_seed(0))
    turns = angles(grid(EDGE), 128, THETA)
    right, wrong = (
        rotate(keys, Rope(t.cos(), t.sin()))
        for t in (by_section(turns, list(SECTIONS) * 2), by_section(turns, [2 * n for n in SECTIONS]))
    )
    error = float(((right - wrong).norm(dim=-1) / right.norm(dim=-1)).mean())
    assert error == pytest.approx(0.31, abs=0.01)
