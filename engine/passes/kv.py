"""The KV of one request, slot by slot, and the buffers that requests take turns in."""

from __future__ import annotations

import threading

import torch

from engine.families.base import ModelShape

SLOT_STEP = 512


class RequestKV:
    """Rotated keys and values of one request: `keys`, `values` [layers, kv_heads, capacity, head_dim]."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys = keys
        self.values = values

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put keys and values [kv_heads, rows, head_dim] into `slots` [rows] of one layer."""
        self.keys[layer].index_copy_(1, slots, keys)
        self.values[layer].index_copy_(1, slots, values)

    def copy(self, other: RequestKV, slots: slice) -> None:
        """Take over what `other` has in `slots`, in all layers."""
        self.keys[:, :, slots] = other.keys[:, :, slots]
        self.values[:, :, slots] = other.values[:, :, slots]


class KVPool:
    """Buffers by capacity, kept between requests: tensors of ever new sizes fragment the C heap of a long-lived
    process (resident memory then grows without bound while live tensors stay small). Thread-safe.

    At most `keep` free buffers are held; their bytes are finite numbers of earlier requests, never read before being
    written (a pass that masks slots it has not written zeroes them first, see `engine.passes.refresh`).
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: torch.device, keep: int = 2) -> None:
        self._shape, self._dtype, self._device, self._keep = shape, dtype, device, keep
        self._free: list[RequestKV] = []
        self._lock = threading.Lock()
        self.taken = 0

    @property
    def slot_bytes(self) -> int:
        """Bytes of KV that one slot takes in all layers."""
        shape = self._shape
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * self._dtype.itemsize

    def take(self, slots: int) -> RequestKV:
        """A buffer of at least `slots` slots: the smallest free one that fits without waste, else a new one."""
        with self._lock:
            fitting = [kv for kv in self._free if slots <= kv.capacity <= 2 * slots + SLOT_STEP]
            if fitting:
                kv = min(fitting, key=lambda kv: kv.capacity)
                self._free.remove(kv)
            else:
                self._free.clear()  # what lies idle makes room for what is needed
                kv = self._allocate(slots)
            self.taken += 1
            return kv

    def give_back(self, kv: RequestKV) -> None:
        with self._lock:
            self.taken -= 1
            self._free.append(kv)
            if len(self._free) > self._keep:
                self._free.remove(min(self._free, key=lambda kv: kv.capacity))

    def grow(self, kv: RequestKV, slots: int) -> RequestKV:
        """A buffer of at least `slots` slots that begins with what `kv` holds; `kv` itself goes back."""
        larger = self.take(slots)
        larger.copy(kv, slice(0, kv.capacity))
        self.give_back(kv)
        return larger

    def _allocate(self, slots: int) -> RequestKV:
        capacity = -(-slots // SLOT_STEP) * SLOT_STEP
        size = (self._shape.layers, self._shape.kv_heads, capacity, self._shape.head_dim)
        keys, values = (torch.zeros(size, dtype=self._dtype, device=self._device) for _ in range(2))
        return RequestKV(keys, values)
