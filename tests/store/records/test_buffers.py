"""Memory that is used again, but never while anybody can see it."""

from __future__ import annotations

import gc

import torch

from store.records.buffers import BufferPool

MIB = 1 << 20


def address(view: memoryview) -> int:
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


def test_a_buffer_is_used_again_once_nobody_refers_to_it() -> None:
    pool = BufferPool(8 * MIB)
    first = pool.take(MIB)
    where = address(first)
    del first
    gc.collect()
    again = pool.take(MIB)
    assert address(again) == where
    assert pool.nbytes == MIB


def test_a_tensor_keeps_its_buffer() -> None:
    pool = BufferPool(8 * MIB)
    view = pool.take(MIB)
    tensor = torch.frombuffer(view, dtype=torch.uint8)[5:10].view(5)
    where = address(view)
    del view
    other = pool.take(MIB)
    assert address(other) != where
    other[:] = b"\xff" * MIB
    assert not (tensor == 255).any()


def test_a_slice_keeps_its_buffer() -> None:
    pool = BufferPool(8 * MIB)
    part = pool.take(MIB)[10:20]
    part[:] = bytes(10)
    pool.take(MIB)[:] = b"\xff" * MIB
    assert bytes(part) == bytes(10)


def test_views_have_the_size_that_was_asked_for() -> None:
    pool = BufferPool(MIB)
    for nbytes in (0, 1, 4096, MIB, MIB + 1):
        assert pool.take(nbytes).nbytes == nbytes


def test_a_small_need_does_not_take_a_large_buffer() -> None:
    pool = BufferPool(64 * MIB)
    pool.take(32 * MIB)
    small = pool.take(MIB)
    assert small.nbytes == MIB
    assert pool.nbytes == 33 * MIB


def test_idle_memory_is_bounded() -> None:
    pool = BufferPool(4 * MIB)
    held = [pool.take(2 * MIB) for _ in range(6)]
    assert pool.nbytes == 12 * MIB
    held.clear()
    assert pool.idle_bytes == 12 * MIB
    pool.trim()
    assert pool.nbytes <= 4 * MIB
    for size in range(1, 20):
        pool.take(size * MIB)
        assert pool.idle_bytes <= max(4 * MIB, size * MIB)
