"""Tensors as bytes and bytes as tensors, without copying."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from store.errors import CodecError
from store.records.entry import ImageKV
from store.records.header import Manifest
from store.records.record import NamedBuffer

AXES = {"keys": 4, "values": 4, "features": 3, "value_norms": 2}
FIELDS = tuple(AXES)

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def buffer_of(name: str, tensor: torch.Tensor) -> NamedBuffer:
    """The bytes of a contiguous CPU tensor, in place. Raises CodecError."""
    if tensor.dtype not in NAMES or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise CodecError(f"{name}: contiguous CPU tensors of {', '.join(DTYPES)} only")
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    return NamedBuffer(name, NAMES[tensor.dtype], tuple(tensor.shape), flat.numpy().data)


def tensor_of(manifest: Manifest, payload: memoryview, name: str) -> torch.Tensor:
    """The tensor `name` as a view of `payload`, which it keeps alive. Raises CodecError if there is none."""
    spec = next((spec for spec in manifest.tensors if spec.name == name), None)
    if spec is None:
        raise CodecError(f"the record has no tensor {name}")
    dtype = DTYPES[spec.dtype]
    count = spec.nbytes // dtype.itemsize
    try:
        if not count:
            return torch.empty(spec.shape, dtype=dtype)
        return torch.frombuffer(payload, dtype=dtype, count=count, offset=spec.offset).view(spec.shape)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise CodecError(f"{name}: {error}") from error


def specs_of(manifest: Manifest) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape by name of all tensors; nothing if a name comes twice."""
    specs = {spec.name: (spec.dtype, spec.shape) for spec in manifest.tensors}
    return specs if len(specs) == len(manifest.tensors) else {}


def finite(tensor: torch.Tensor) -> bool:
    """Whether there is no NaN and no infinity in it, at about the speed of memory."""
    # A finite sum has finite terms. The sum alone may overflow, then the bounds tell.
    if not tensor.numel() or math.isfinite(tensor.sum().item()):
        return True
    return all(math.isfinite(bound.item()) for bound in torch.aminmax(tensor))


def sound(entry: ImageKV) -> bool:
    """Whether it may be stored: a number that is none would be served for ever."""
    return all(finite(getattr(entry, name)) for name in FIELDS)


def check_axes(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises CodecError where the tensors of an entry have not the axes that they must have."""
    for name, axes in AXES.items():
        if tensors[name].dim() != axes:
            raise CodecError(f"{name} on {tensors[name].dim()} axes instead of {axes}")
