"""Entries with keys and values as integer codes: keys in groups of tokens per channel, values in groups of
channels per token. Keys have channels with large constant offsets, which the offset of a group takes up
whole; per token they would drown the rest.

Features stay as they are, as recomputed rows start from them (r = 1 is full prefill), and so do the value
norms, which decide which rows that is. A tensor with anything in it that is not finite is stored as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from store.codecs.protocol import Prepared
from store.codecs.quantise import Quantised, dequantise, quantise, quantised_bytes
from store.errors import CodecError
from store.records.entry import ImageKV
from store.records.header import Manifest
from store.records.record import Encoded, NamedBuffer
from store.records.tensors import DTYPES, NAMES, buffer_of, tensor_of

_log = logging.getLogger(__name__)

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
        packed = {name: quantise(_checked(name, entry), axis, self._bits) for name, axis in _AXES.items()}
        decoded = {
            name: self._dequantise(codes, name, getattr(entry, name).dtype)
            for name, codes in packed.items()
            if codes is not None
        }
        kept = ImageKV(
            keys=decoded.get("keys", entry.keys),
            values=decoded.get("values", entry.values),
            features=entry.features,
            value_norms=entry.value_norms,
        )
        return Prepared(kept, _packer(kept, packed))

    def roundtrip(self, entry: ImageKV) -> ImageKV:
        return self.prepare(entry).entry

    def decode(self, manifest: Manifest, payload: memoryview) -> ImageKV:
        keys, values = (self._decode(manifest, payload, name) for name in _AXES)
        features, norms = (tensor_of(manifest, payload, name) for name in _EXACT)
        return ImageKV(keys, values, features, norms)

    def payload_bytes(self, entry: ImageKV) -> int:
        integers = sum(
            quantised_bytes(getattr(entry, name).shape, axis, self._bits) for name, axis in _AXES.items()
        )
        return integers + entry.features.nbytes + entry.value_norms.nbytes

    def _decode(self, manifest: Manifest, payload: memoryview, name: str) -> torch.Tensor:
        dtype = manifest.attributes.get(f"{name}.dtype")
        if dtype is None:
            return tensor_of(manifest, payload, name)
        if dtype not in DTYPES:
            raise CodecError(f"{name}: dtype {dtype}")
        codes, offset, scale = (
            tensor_of(manifest, payload, f"{name}.{part}") for part in ("codes", "offset", "scale")
        )
        try:
            width = int(manifest.attributes[f"{name}.width"])
            return self._dequantise(Quantised(codes, offset, scale, width), name, DTYPES[dtype])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CodecError(f"{name}: {error}") from error

    def _dequantise(self, packed: Quantised, name: str, dtype: torch.dtype) -> torch.Tensor:
        codes, offset, scale = (part.to(self._device) for part in (packed.codes, packed.offset, packed.scale))
        there = Quantised(codes, offset, scale, packed.width)
        return dequantise(there, _AXES[name], self._bits, dtype)


def _checked(name: str, entry: ImageKV) -> torch.Tensor:
    tensor: torch.Tensor = getattr(entry, name)
    if tensor.dtype not in NAMES or tensor.dim() != 4:
        raise CodecError(f"{name}: four axes of {', '.join(DTYPES)} only")
    return tensor


def _packer(kept: ImageKV, packed: dict[str, Quantised | None]) -> Callable[[], Encoded]:
    """The buffers of `kept`: codes where there are any, the tensor itself where not."""

    def pack() -> Encoded:
        buffers: list[NamedBuffer] = []
        attributes: dict[str, str] = {}
        for name, codes in packed.items():
            tensor: torch.Tensor = getattr(kept, name)
            if codes is None:
                _log.warning("%s is not finite and is stored as it is", name)
                buffers.append(buffer_of(name, tensor))
                continue
            attributes[f"{name}.dtype"] = NAMES[tensor.dtype]
            attributes[f"{name}.width"] = str(codes.width)
            buffers += [
                buffer_of(f"{name}.{part}", getattr(codes, part)) for part in ("codes", "offset", "scale")
            ]
        buffers += [buffer_of(name, getattr(kept, name)) for name in _EXACT]
        return Encoded(buffers, attributes)

    return pack
