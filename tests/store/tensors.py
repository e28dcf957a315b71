"""Entries of tensors for tests."""

from __future__ import annotations

from typing import Any

import torch

from store.codecs.protocol import Codec
from store.records.entry import ImageKV, Layout
from store.records.header import RecordInfo
from store.records.record import Record, RecordReader, build
from store.records.tensors import FIELDS
from tests.store.samples import BUFFERS, key_of


def entry_of(number: int, *, tokens: int = 3, dtype: torch.dtype = torch.float32) -> ImageKV:
    """2 layers, 2 heads of size 4, 2 feature levels of 8; content of its own."""
    generator = torch.Generator().manual_seed(number)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return ImageKV(
        keys=draw(2, 2, tokens, 4).to(dtype),
        values=draw(2, 2, tokens, 4).to(dtype),
        features=draw(2, tokens, 8).to(dtype),
        value_norms=draw(2, tokens),
    )


def layout_of(entry: ImageKV) -> Layout:
    """What a model with entries like this one expects."""
    layers, heads, tokens, size = entry.keys.shape
    levels, _, hidden = entry.features.shape
    return Layout(layers, heads, tokens, size, levels, hidden, str(entry.keys.dtype).removeprefix("torch."))


def same(left: ImageKV, right: ImageKV) -> bool:
    """Bit for bit, NaN included."""
    pairs = [(getattr(left, name), getattr(right, name)) for name in FIELDS]
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
        for a, b in pairs
    )


def stored(codec: Codec[Any], entry: ImageKV) -> tuple[ImageKV, Record]:
    """The prepared entry, and its record after a trip through bytes."""
    prepared = codec.prepare(entry)
    key = key_of(1, codec=codec.name)
    info = RecordInfo.of(key, entry.tokens, 0.0, 0.0)
    record = build(key.digest, codec.identity, prepared.pack(), info, BUFFERS)
    reader = RecordReader(key.digest, codec.identity, BUFFERS)
    reader.manifest(record.head)
    for piece in record.pieces():
        reader.piece(bytes(piece))
    return prepared.entry, reader.record()
