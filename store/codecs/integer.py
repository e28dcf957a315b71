"""Entries with keys and values as integer codes: keys in groups of tokens per channel, values in groups of
channels per token. Keys have channels with large constant offsets, which the offset of a group takes up
whole; per token they would drown the rest.

Features stay as they are, as recomputed rows start from them (r = 1 is full prefill), and so do the value
norms, which decide which rows that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from store.codecs.protocol import Prepared
from store.codecs.quantise import Quantised, bounds, dequantise, quantise, quantised_bytes, quantised_shapes
from store.errors import CodecError, Rejected
from store.records.entry import ImageKV, Layout
from store.records.header import Manifest
from store.records.record import Encoded, NamedBuffer
from store.records.tensors import (
    DTYPES,
    NAMES,
    buffer_of,
    check_axes,
    finite,
    specs_of,
    tensor_of,
)

_AXES = {"keys": -2, "values": -1}
_EXACT = ("features", "value_norms")


class IntegerCodec:
    """`bits` is 8 or 4. Keys and values are dequantised on `device`, in `prepare` as in `decode`: a miss must see
    the very numbers that a hit will."""

    def __init__(self, bits: int, device: str = "cpu") -> None:
        self._bits = bits
        self._device = device
        self.name = f"int{bits}"
        self.identity = f"int{bits}/1"

    def on(self, device: str) -> IntegerCodec:
        return IntegerCodec(self._bits, device)

    def prepare(self, entry: ImageKV) -> Prepared[ImageKV]:
        quantised = {name: quantise(_checked(name, entry), axis, self._bits) for name, axis in _AXES.items()}
        packed = {name: codes for name, codes in quantised.items() if codes is not None}
        decoded = {
            name: self._dequantise(codes, name, getattr(entry, name).dtype) for name, codes in packed.items()
        }
        kept = ImageKV(
            keys=decoded.get("keys", entry.keys),
            values=decoded.get("values", entry.values),
            features=entry.features,
            value_norms=entry.value_norms,
        )
        sound = len(packed) == len(_AXES) and self._sound(kept, packed)
        return Prepared(kept, _packer(kept, packed, sound), sound)

    def roundtrip(self, entry: ImageKV) -> ImageKV:
        return self.prepare(entry).entry

    def fits(self, manifest: Manifest, layout: Layout) -> bool:
        specs = specs_of(manifest)
        expected = {name: layout.tensors[name] for name in _EXACT}
        attributes: dict[str, str] = {}
        for name, axis in _AXES.items():
            dtype, shape = layout.tensors[name]
            codes, parameters = quantised_shapes(shape, axis, self._bits)
            # Which of the two precisions follows from the values.
            parameter, _ = specs.get(f"{name}.offset", ("", ()))
            if parameter not in ("float16", "float32"):
                return False
            expected |= {f"{name}.{part}": (parameter, parameters) for part in ("offset", "scale")}
            expected[f"{name}.codes"] = ("uint8", codes)
            attributes |= {f"{name}.dtype": dtype, f"{name}.width": str(shape[-1])}
        return specs == expected and manifest.attributes == attributes

    def decode(self, manifest: Manifest, payload: memoryview) -> ImageKV:
        exact = {name: tensor_of(manifest, payload, name) for name in _EXACT}
        tensors = {name: self._decode(manifest, payload, name) for name in _AXES} | exact
        check_axes(tensors)
        return ImageKV(**tensors)

    def payload_bytes(self, entry: ImageKV) -> int:
        integers = sum(
            quantised_bytes(getattr(entry, name).shape, axis, self._bits) for name, axis in _AXES.items()
        )
        return integers + entry.features.nbytes + entry.value_norms.nbytes

    def _decode(self, manifest: Manifest, payload: memoryview, name: str) -> torch.Tensor:
        codes, offset, scale = (
            tensor_of(manifest, payload, f"{name}.{part}") for part in ("codes", "offset", "scale")
        )
        try:
            dtype = DTYPES[manifest.attributes[f"{name}.dtype"]]
            packed = Quantised(codes, offset, scale, int(manifest.attributes[f"{name}.width"]))
            if not all(map(finite, bounds(packed, self._bits, dtype))):
                raise Rejected("outdated", f"{name} do not decode to finite numbers")
            return self._dequantise(packed, name, dtype)
        except (KeyError, ValueError, RuntimeError, TypeError, IndexError, OverflowError) as error:
            raise CodecError(f"{name}: {error}") from error

    def _sound(self, kept: ImageKV, packed: Mapping[str, Quantised]) -> bool:
        """Judged by the parameters: the decoded tensors may be on a device."""
        ends = [
            bound
            for name, codes in packed.items()
            for bound in bounds(codes, self._bits, getattr(kept, name).dtype)
        ]
        exact = [getattr(kept, name) for name in _EXACT]
        return all(map(finite, [*ends, *exact]))

    def _dequantise(self, packed: Quantised, name: str, dtype: torch.dtype) -> torch.Tensor:
        codes, offset, scale = (part.to(self._device) for part in (packed.codes, packed.offset, packed.scale))
        there = Quantised(codes, offset, scale, packed.width)
        return dequantise(there, _AXES[name], self._bits, dtype)


def _checked(name: str, entry: ImageKV) -> torch.Tensor:
    tensor: torch.Tensor = getattr(entry, name)
    if tensor.dtype not in NAMES or tensor.dim() != 4:
        raise CodecError(f"{name}: four axes of {', '.join(DTYPES)} only")
    return tensor


def _packer(kept: ImageKV, packed: Mapping[str, Quantised], sound: bool) -> Callable[[], Encoded]:
    """The buffers of `kept`, with codes for keys and values."""

    def pack() -> Encoded:
        if not sound:
            raise CodecError("numbers that are not finite")
        buffers: list[NamedBuffer] = []
        attributes: dict[str, str] = {}
        for name, codes in packed.items():
            tensor: torch.Tensor = getattr(kept, name)
            attributes[f"{name}.dtype"] = NAMES[tensor.dtype]
            attributes[f"{name}.width"] = str(codes.width)
            buffers += [
                buffer_of(f"{name}.{part}", getattr(codes, part)) for part in ("codes", "offset", "scale")
            ]
        buffers += [buffer_of(name, getattr(kept, name)) for name in _EXACT]
        return Encoded(buffers, attributes)

    return pack
