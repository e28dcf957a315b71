"""Keys, entries and records for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from store.buffers import BufferPool
from store.codec import codec_named
from store.entry import ImageKV
from store.header import RecordInfo
from store.keys import ModelKey, VisualKey, pixel_digest
from store.record import Record, RecordReader, build
from store.tier import Tier

BUFFERS = BufferPool(64 << 20)

MODEL = ModelKey(
    model_id="tiny",
    revision="main",
    weights_fingerprint="f0" * 32,
    processor="Qwen2VLImageProcessor max_pixels=1003520 min_pixels=3136",
    dtype="float32",
    codec="raw",
    prefix_ids=(1, 2, 3),
    rope="mrope theta=1000000.0 section=16,24,24",
)


def key_of(number: int, *, tenant: str = "acme", codec: str = "raw", **model: Any) -> VisualKey:
    """The key of a 2 x 1 image that differs by `number`."""
    pixels = number.to_bytes(6, "little")
    changed = replace(MODEL, codec=codec, **model)
    return VisualKey("default", tenant, changed, pixel_digest(2, 1, pixels), 2, 1)


def entry_of(number: int, *, tokens: int = 3, dtype: torch.dtype = torch.float32, hidden: int = 8) -> ImageKV:
    """An entry with content of its own: 2 layers, 2 heads of size 4, 2 feature levels."""
    generator = torch.Generator().manual_seed(number)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return ImageKV(
        keys=draw(2, 2, tokens, 4).to(dtype),
        values=draw(2, 2, tokens, 4).to(dtype),
        features=draw(2, tokens, hidden).to(dtype),
        value_norms=draw(2, tokens),
    )


def big_entry(number: int, nbytes: int) -> ImageKV:
    """An entry of about `nbytes`, cheap to make: all of it is `number`."""
    full = torch.full((1, 1, nbytes // 8, 1), float(number))
    return ImageKV(full, full.clone(), torch.zeros(1, 1, 1), torch.zeros(1, 1))


def same(left: ImageKV, right: ImageKV) -> bool:
    """Bit for bit, NaN included."""
    pairs = [
        (getattr(left, name), getattr(right, name)) for name in ("keys", "values", "features", "value_norms")
    ]
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        for a, b in pairs
    )


def record_of(key: VisualKey, entry: ImageKV, *, created: float = 1000.0, seconds: float = 0.1) -> Record:
    codec = codec_named(key.model.codec)
    info = RecordInfo.of(key, entry.tokens, created, seconds)
    return build(key.digest, codec.identity, codec.prepare(entry).pack(), info, BUFFERS)


def small_record(number: int, **options: Any) -> Record:
    return record_of(key_of(number, **options), entry_of(number))


def big_record(number: int, nbytes: int, **options: Any) -> Record:
    return record_of(key_of(number), big_entry(number, nbytes), **options)


def read(tier: Tier, digest: bytes) -> Record | None:
    """What the tier gives for `digest`, verified."""
    reader = RecordReader(digest, None, BUFFERS)
    return reader.record() if tier.get(digest, reader) else None


def content(record: Record) -> tuple[bytes, bytes]:
    return record.head, record.payload.tobytes()
