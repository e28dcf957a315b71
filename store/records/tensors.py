"""Tensors as bytes and bytes as tensors, without copying."""

from __future__ import annotations

import torch

from store.errors import CodecError
from store.records.header import Manifest
from store.records.record import NamedBuffer

FIELDS = ("keys", "values", "features", "value_norms")

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
    if not count:
        return torch.empty(spec.shape, dtype=dtype)
    return torch.frombuffer(payload, dtype=dtype, count=count, offset=spec.offset).view(spec.shape)
