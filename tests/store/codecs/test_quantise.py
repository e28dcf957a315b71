"""The error bounds of the integer codecs (compression plan 4.3 and 5), on synthetic keys with large channel
offsets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from store.codecs.protocol import codec_named
from store.codecs.quantise import GROUP, Quantised, dequantise, quantise, quantised_bytes
from store.records.entry import ImageKV
from tests.store.tensors import stored

HEADS, TOKENS, CHANNELS, QUERIES = 2, 1024, 128, 8


def content(seed: int) -> torch.Tensor:
    """The part of keys or values that differs between tokens [1, heads, tokens, channels]."""
    return torch.randn((1, HEADS, TOKENS, CHANNELS), generator=torch.Generator().manual_seed(seed))


def keys_with_offsets(seed: int, scale: float) -> torch.Tensor:
    """Every channel has a constant offset, eight of them drawn with `scale`."""
    generator = torch.Generator().manual_seed(seed + 1000)
    offsets = torch.zeros(1, HEADS, 1, CHANNELS)
    offsets[..., :8] = scale * torch.randn((1, HEADS, 1, 8), generator=generator)
    return content(seed) + offsets


def values_of(seed: int) -> torch.Tensor:
    """Values whose size differs between tokens, as that of visual tokens does."""
    generator = torch.Generator().manual_seed(seed + 2000)
    return content(seed) * torch.exp(0.5 * torch.randn((1, HEADS, TOKENS, 1), generator=generator))


def entry(keys: torch.Tensor, values: torch.Tensor) -> ImageKV:
    features = torch.zeros(1, keys.shape[2], 8)
    return ImageKV(keys, values, features, values.norm(dim=-1).mean(dim=1))


def prepared(name: str, keys: torch.Tensor, values: torch.Tensor) -> ImageKV:
    result = codec_named(name).prepare(entry(keys, values)).entry
    assert isinstance(result, ImageKV)
    return result


@pytest.mark.parametrize(("name", "bound"), [("int8", 0.01), ("int4", 0.10)])
@pytest.mark.parametrize("scale", [0.0, 20.0, 100.0])
def test_error_on_the_part_of_keys_that_differs_between_tokens(name: str, bound: float, scale: float) -> None:
    keys, values = keys_with_offsets(1, scale), content(2)
    after = prepared(name, keys, values)
    assert float((after.keys - keys).norm() / content(1).norm()) <= bound
    assert float((after.values - values).norm() / values.norm()) <= bound


@pytest.mark.parametrize(("name", "bound"), [("int8", 0.98), ("int4", 0.94)])
@pytest.mark.parametrize("scale", [0.0, 100.0])
def test_the_rows_chosen_for_refresh_stay_the_same(name: str, bound: float, scale: float) -> None:
    """Overlap of the top 10 % of tokens by (attention x norm of V), over 8 seeds and as many query rows a
    head, as the scoring pass has several."""
    overlaps = []
    for seed in range(8):
        keys, values = keys_with_offsets(seed, scale), values_of(seed + 50)
        query = torch.randn((HEADS, QUERIES, CHANNELS), generator=torch.Generator().manual_seed(seed + 99))
        after = prepared(name, keys, values)

        def top(entry: ImageKV, query: torch.Tensor = query) -> set[int]:
            scores = torch.einsum("hqd,htd->hqt", query, entry.keys[0]) / CHANNELS**0.5
            worth = scores.softmax(dim=-1).mean(dim=(0, 1)) * entry.value_norms[0]
            return set(worth.topk(TOKENS // 10).indices.tolist())

        before = top(entry(keys, values))
        overlaps.append(len(before & top(after)) / len(before))
    assert sum(overlaps) / len(overlaps) >= bound


@pytest.mark.parametrize(("name", "per_value"), [("int8", 1.0625), ("int4", 0.5625)])
def test_size_is_the_formula(name: str, per_value: float) -> None:
    keys, values = content(1).bfloat16(), content(2).bfloat16()
    codec = codec_named(name)
    _, record = stored(codec, entry(keys, values))
    exact = record.payload.nbytes - TOKENS * (8 * 4 + 4)
    assert exact == pytest.approx(per_value * 2 * keys.numel(), rel=0.01)


@given(
    tokens=st.integers(1, 150),
    channels=st.integers(1, 70),
    bits=st.sampled_from([4, 8]),
    axis=st.sampled_from([-2, -1]),
    magnitude=st.sampled_from([1e-6, 1.0, 3e4, 1e9]),
    seed=st.integers(0, 1000),
)
def test_error_is_half_a_step_and_the_rounding_of_the_offset(
    tokens: int, channels: int, bits: int, axis: int, magnitude: float, seed: int
) -> None:
    x = magnitude * torch.randn((1, 1, tokens, channels), generator=torch.Generator().manual_seed(seed))
    packed = quantise(x, axis, bits)
    assert packed is not None
    after = dequantise(packed, axis, bits, torch.float32)
    step = packed.scale.float().repeat_interleave(GROUP, dim=axis).narrow(axis, 0, x.shape[axis])
    low = packed.offset.float().repeat_interleave(GROUP, dim=axis).narrow(axis, 0, x.shape[axis])
    # float16 keeps 11 bits, and no finer than 6e-8; the span of the codes suffers from both parameters.
    rounding = (low.abs() + (1 << bits) * step) * 2**-11 + 256 * 6e-8
    assert bool(((after - x).abs() <= step / 2 + rounding).all())


def test_a_short_last_group_is_not_padded() -> None:
    x = 100 + torch.rand(1, 1, GROUP + 1, 1)
    packed = quantise(x, -2, 8)
    assert packed is not None and packed.scale.shape == (1, 1, 2, 1)
    assert float(packed.scale[0, 0, 1, 0]) == pytest.approx(6e-8, rel=0.01)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 65504.0, -1e9])
def test_constant_groups_have_no_nan(value: float) -> None:
    x = torch.full((1, 1, 70, 3), value)
    packed = quantise(x, -2, 8)
    assert packed is not None
    assert torch.equal(dequantise(packed, -2, 8, torch.float32), x)


def test_large_offsets_are_kept_in_float32() -> None:
    small = quantise(torch.full((1, 1, 2, 2), 65504.0), -1, 8)
    large = quantise(torch.full((1, 1, 2, 2), 7e4), -1, 8)
    assert small is not None and small.offset.dtype == torch.float16
    assert large is not None and large.offset.dtype == torch.float32


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_has_no_codes(value: float) -> None:
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 2, 1] = value
    assert quantise(x, -1, 8) is None


def test_nibbles_lie_low_first() -> None:
    x = torch.tensor([0.0, 15.0, 3.0, 7.0, 15.0]).view(1, 1, 1, 5)
    packed = quantise(x, -1, 4)
    assert packed is not None
    assert packed.codes.flatten().tolist() == [0 | 15 << 4, 3 | 7 << 4, 15]
    assert torch.equal(dequantise(packed, -1, 4, torch.float32), x)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(2, 2, 65, 7), (1, 2, 64, 128), (3, 1, 1, 1)])
def test_bytes_are_counted_without_encoding(bits: int, shape: tuple[int, ...]) -> None:
    for axis in (-2, -1):
        packed = quantise(torch.randn(shape), axis, bits)
        assert isinstance(packed, Quantised)
        total = packed.codes.nbytes + packed.offset.nbytes + packed.scale.nbytes
        assert quantised_bytes(torch.Size(shape), axis, bits) == total


def plainly(x: torch.Tensor, axis: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and what they decode to, by the formulas of docs/store.md, a group at a time; float16 parameters."""
    levels = (1 << bits) - 1
    moved = np.moveaxis(x.numpy(), axis, 0)
    codes, decoded = np.zeros(moved.shape, np.uint8), np.zeros(moved.shape, np.float32)
    for first in range(0, len(moved), GROUP):
        group = moved[first : first + GROUP]
        least, greatest = group.min(axis=0), group.max(axis=0)
        offset = least.astype(np.float16).astype(np.float32)
        steps = np.maximum((greatest - least) / np.float32(levels), np.float32(6e-8))
        scale = steps.astype(np.float16).astype(np.float32)
        code = np.clip(np.rint((group - offset) / scale), 0, levels)
        codes[first : first + GROUP] = code
        decoded[first : first + GROUP] = code * scale + offset
    return np.moveaxis(codes, 0, axis), np.moveaxis(decoded, 0, axis)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("axis", [-2, -1])
@pytest.mark.parametrize("offset", [0.0, 1000.37, -2048.3])
def test_codes_are_those_of_the_document_computed_from_the_parameters_as_they_are_stored(
    bits: int, axis: int, offset: float
) -> None:
    """Rounding an offset of 1000 to float16 moves it by up to 0.25: codes of the unrounded one would be off by as much
    again."""
    noise = torch.randn((2, 2, 130, 70), generator=torch.Generator().manual_seed(3))
    groups = torch.linspace(0.5, 1.5, 70) if axis == -2 else torch.linspace(0.5, 1.5, 130)[:, None]
    x = noise + offset * groups
    packed = quantise(x, axis, bits)
    assert packed is not None
    codes, decoded = plainly(x, axis, bits)
    unpacked = (
        torch.stack((packed.codes & 15, packed.codes >> 4), -1).flatten(-2) if bits == 4 else packed.codes
    )
    assert np.array_equal(unpacked.numpy(), codes)
    assert np.array_equal(dequantise(packed, axis, bits, torch.float32).numpy(), decoded)
