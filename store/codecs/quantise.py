"""Asymmetric integer quantisation in groups, as specified in docs/store.md (after KIVI, with its defects
mended).

For each group: offset = min, scale = max((max - min) / levels, 6e-8), both rounded to the precision in which
they are stored before the codes are computed: code = clip(round((x - offset) / scale), 0, levels). The last
group of an axis may be short. A constant group has the smallest scale instead of none. The error of a value
is at most scale / 2 and the rounding of the offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    if not x.numel():
        return None
    least, greatest = (float(bound) for bound in torch.aminmax(x))
    if not (math.isfinite(least) and math.isfinite(greatest)):
        return None
    most = max(-least, greatest)
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
        done = 0
        for target, block in zip(_blocks(layer, axis), _blocks(unpacked, axis), strict=True):
            groups = block.shape[axis - 1]
            low, step = (_of_groups(parameter, axis, done, groups) for parameter in (offset, scale))
            target.copy_(block.float().mul_(step).add_(low))
            done += groups
    return out


def bounds(packed: Quantised, bits: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of what each group can decode to: if they are finite, all of it is."""
    low, step = packed.offset.float(), packed.scale.float()
    return low.to(dtype), (low + step * ((1 << bits) - 1)).to(dtype)


def quantised_shapes(shape: Sequence[int], axis: int, bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the codes, and of offset and scale, for a tensor of `shape`."""
    width = -(-shape[-1] // 2) if bits == 4 else shape[-1]
    parameters = list(shape)
    parameters[axis] = -(-shape[axis] // GROUP)
    return (*shape[:-1], width), tuple(parameters)


def quantised_bytes(shape: Sequence[int], axis: int, bits: int, parameter_bytes: int = 2) -> int:
    """Bytes of codes, offsets and scales for a tensor of `shape`."""
    codes, parameters = quantised_shapes(shape, axis, bits)
    return math.prod(codes) + 2 * parameter_bytes * math.prod(parameters)


def _quantise_layer(
    x: torch.Tensor, axis: int, levels: int, parameter: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, offsets and scales of one layer [heads, tokens, channels]."""
    parts = [_quantise_block(block, axis, levels, parameter) for block in _blocks(x, axis)]
    codes, offset, scale = (torch.cat(of_blocks, dim=axis) for of_blocks in zip(*parts, strict=True))
    return codes, offset, scale


def _quantise_block(
    block: torch.Tensor, axis: int, levels: int, parameter: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = block.amin(dim=axis, keepdim=True), block.amax(dim=axis, keepdim=True)
    scale = ((high - low) / levels).clamp_(min=_LEAST_SCALE).to(parameter)
    offset = low.to(parameter)
    codes = (block - offset.float()).div_(scale.float()).round_().clamp_(0, levels).to(torch.uint8)
    return codes.flatten(axis - 1, axis), offset.squeeze(axis), scale.squeeze(axis)


def _blocks(x: torch.Tensor, axis: int) -> list[torch.Tensor]:
    """Views of `x` with `axis` split into groups and their members: the whole groups, then the short one."""
    size = x.shape[axis]
    whole = size - size % GROUP
    blocks = []
    if whole:
        blocks.append(torch.unflatten(x.narrow(axis, 0, whole), axis, (-1, GROUP)))
    if size > whole:
        blocks.append(torch.unflatten(x.narrow(axis, whole, size - whole), axis, (1, -1)))
    return blocks


def _of_groups(parameter: torch.Tensor, axis: int, first: int, count: int) -> torch.Tensor:
    """One parameter a group, in float32, to be broadcast over the members."""
    return parameter.narrow(axis, first, count).unsqueeze(axis).float()


def _pack(codes: torch.Tensor) -> torch.Tensor:
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _unpack(packed: torch.Tensor, width: int) -> torch.Tensor:
    both = torch.stack((packed & 15, packed >> 4), dim=-1)
    return both.flatten(-2)[..., :width]
