"""Rotary embedding in the half-split layout of the Llama and Qwen families."""

from __future__ import annotations

import torch

from engine.families.base import Rope


def rotate(x: torch.Tensor, rope: Rope, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rotate x [..., rows, head_dim] by `rope` [rows, head_dim], into `out` (which must not overlap x) where given.

    x cos + rotate_half(x) sin, written half by half: no temporary of the size of x is made.
    """
    out = torch.empty_like(x) if out is None else out
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    torch.mul(low, rope.cos[:, :half], out=out[..., :half]).addcmul_(high, rope.sin[:, :half], value=-1)
    torch.mul(high, rope.cos[:, half:], out=out[..., half:]).addcmul_(low, rope.sin[:, half:])
    return out


def rotate_back(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """What `rotate` by `rope` made x [..., rows, head_dim] of, to float rounding. Lengths count: some models scale
    cosines and sines."""
    cos, sin = rope.cos.float(), rope.sin.float()
    length = cos.square() + sin.square()
    return rotate(x.float(), Rope(cos / length, -sin / length)).to(x.dtype)
