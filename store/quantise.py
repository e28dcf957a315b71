"""Asymmetric integer quantisation in groups, as specified in docs/store.md (after KIVI, with its defects
mended).

For each group: offset = min, scale = max((max - min) / levels, 6e-8), both rounded to the precision in which
they are stored before the codes are computed: code = clip(round((x - offset) / scale), 0, levels). The last
group of an axis may be short. A constant group has the smallest scale instead of none. The error of a value
is at most scale / 2 and the rounding of the offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

GROUP = 64
_LEAST_SCALE = 6e-8
_MOST_HALF = 65504.0


@dataclass(frozen=True, slots=True)
class Quantised:
    """codes: uint8, for 4 bits two to a byte along the last axis, the even index in the low nibble. offset,
    scale: float16, or float32 where an offset is out of its range; the shape of the input with the grouped
    axis divided by the group, rounded up. width: length of the last axis before packing."""

    codes: torch.Tensor
    offset: torch.Tensor
    scale: torch.Tensor
    width: int


def quantise(x: torch.Tensor, axis: int, bits: int) -> Quantised | None:
    """Codes of `x` [layers, heads, tokens, channels], grouped along `axis` (-2: tokens, -1: channels); None
    if it is not finite."""
    most = float(x.abs().amax()) if x.numel() else 0.0
    if not math.isfinite(most):
        return None
    levels = (1 << bits) - 1
    parameter = torch.float16 if most <= _MOST_HALF else torch.float32
    # A layer at a time: in float32 the whole tensor would need several times its memory.
    layers = [_quantise_layer(layer.float(), axis, levels, parameter) for layer in x]
    codes, offset, scale = (torch.stack(parts) for parts in zip(*layers, strict=True))
    return Quantised(_pack(codes) if bits == 4 else codes, offset, scale, x.shape[-1])


def dequantise(packed: Quantised, axis: int, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """codes * scale + offset, computed in float32."""
    layers, heads, tokens, _ = packed.codes.shape
    out = torch.empty((layers, heads, tokens, packed.width), dtype=dtype, device=packed.codes.device)
    for layer, codes, offset, scale in zip(out, packed.codes, packed.offset, packed.scale, strict=True):
        unpacked = _unpack(codes, packed.width) if bits == 4 else codes
        size = unpacked.shape[axis]
        value = unpacked.float() * _spread(scale, axis, size)
        layer.copy_(value.add_(_spread(offset, axis, size)))
    return out


def quantised_bytes(shape: torch.Size, axis: int, bits: int, parameter_bytes: int = 2) -> int:
    """Bytes of codes, offsets and scales for a tensor of `shape`."""
    rows = math.prod(shape[:-1])
    codes = rows * (-(-shape[-1] // 2) if bits == 4 else shape[-1])
    groups = math.prod(shape) // shape[axis] * -(-shape[axis] // GROUP) if shape[axis] else 0
    return codes + 2 * parameter_bytes * groups


def _quantise_layer(
    x: torch.Tensor, axis: int, levels: int, parameter: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, offsets and scales of one layer [heads, tokens, channels]."""
    groups = torch.split(x, GROUP, dim=axis)
    low = torch.stack([group.amin(dim=axis) for group in groups], dim=axis)
    high = torch.stack([group.amax(dim=axis) for group in groups], dim=axis)
    scale = ((high - low) / levels).clamp_(min=_LEAST_SCALE).to(parameter)
    offset = low.to(parameter)
    size = x.shape[axis]
    codes = (x - _spread(offset, axis, size)).div_(_spread(scale, axis, size)).round_().clamp_(0, levels)
    return codes.to(torch.uint8), offset, scale


def _spread(parameter: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Each group's parameter at each of its places, in float32."""
    return parameter.float().repeat_interleave(GROUP, dim=axis).narrow(axis, 0, size)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _unpack(packed: torch.Tensor, width: int) -> torch.Tensor:
    both = torch.stack((packed & 15, packed >> 4), dim=-1)
    return both.flatten(-2)[..., :width]
