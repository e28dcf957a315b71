"""The buffers that requests take turns in."""

from __future__ import annotations

import torch

from engine.families.base import ModelShape
from engine.passes.kv import SLOT_STEP, KVPool, RequestKV

SHAPE = ModelShape(layers=2, hidden=8, intermediate=8, heads=2, kv_heads=1, head_dim=4, vocab=16)


def pool(keep: int = 2) -> KVPool:
    return KVPool(SHAPE, torch.float32, torch.device("cpu"), keep)


def written(kv: RequestKV) -> RequestKV:
    """Another number in every slot."""
    for tensor in (kv.keys, kv.values):
        tensor.copy_(torch.randn(tensor.shape))
    return kv


def test_promise_3_kv_that_grows_keeps_every_slot() -> None:
    buffers = pool()
    kv = written(buffers.take(100))
    keys, values, capacity = kv.keys.clone(), kv.values.clone(), kv.capacity
    larger = buffers.grow(kv, capacity + 1)
    assert larger.capacity > capacity == keys.shape[2]
    assert torch.equal(larger.keys[:, :, :capacity], keys)
    assert torch.equal(larger.values[:, :, :capacity], values)
    assert buffers.taken == 1, "the smaller buffer went back"
    assert buffers.take(100) is kv


def test_a_buffer_is_as_large_as_asked_for_and_counts_what_it_takes() -> None:
    kv = pool().take(SLOT_STEP + 1)
    assert kv.capacity == 2 * SLOT_STEP
    assert pool().slot_bytes * kv.capacity == kv.keys.nbytes + kv.values.nbytes


def test_the_smallest_free_buffer_that_fits_without_waste_is_taken() -> None:
    buffers = pool(keep=3)
    small, middle, large = (buffers.take(count * SLOT_STEP) for count in (1, 2, 8))
    for kv in (large, middle, small):
        buffers.give_back(kv)
    assert buffers.take(SLOT_STEP + 1) is middle
    assert buffers.take(SLOT_STEP) is small
    wasteful = buffers.take(SLOT_STEP)
    assert wasteful is not large and wasteful.capacity == SLOT_STEP


def test_what_lies_idle_is_bounded_and_makes_room_for_what_is_needed() -> None:
    buffers = pool(keep=2)
    taken = [buffers.take(count * SLOT_STEP) for count in (1, 2, 3)]
    for kv in taken:
        buffers.give_back(kv)
    assert buffers.taken == 0
    assert sorted(kv.capacity for kv in buffers._free) == [2 * SLOT_STEP, 3 * SLOT_STEP]
    buffers.take(100 * SLOT_STEP)
    assert buffers._free == []
