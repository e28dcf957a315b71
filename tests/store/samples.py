"""Keys, entries and records for tests, without torch: an entry is a blob of bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from store.codecs.protocol import Prepared
from store.errors import CodecError
from store.records.buffers import BufferPool
from store.records.header import Manifest, RecordInfo
from store.records.keys import ModelKey, VisualKey, pixel_digest
from store.records.record import Encoded, NamedBuffer, Record, RecordReader, build
from store.tiers.protocol import Tier

BUFFERS = BufferPool(64 << 20)

MODEL = ModelKey(
    model_id="tiny",
    revision="main",
    weights_fingerprint="f0" * 32,
    processor="Qwen2VLImageProcessor max_pixels=1003520 min_pixels=3136",
    dtype="float32",
    codec="blob",
    prefix_ids=(1, 2, 3),
    rope="mrope theta=1000000.0 section=16,24,24",
)


@dataclass(frozen=True, slots=True)
class Blob:
    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)

    @property
    def tokens(self) -> int:
        return len(self.data) // 8


class BlobCodec:
    """Lossy on purpose: the lowest bit of each byte is lost, so that an entry that skips `prepare` shows."""

    name = "blob"
    identity = "blob/1"

    def prepare(self, entry: Blob) -> Prepared[Blob]:
        kept = Blob(_even(entry.data))
        buffer = NamedBuffer("data", "uint8", (kept.nbytes,), memoryview(kept.data))
        return Prepared(kept, lambda: Encoded([buffer]))

    def roundtrip(self, entry: Blob) -> Blob:
        return self.prepare(entry).entry

    def fits(self, manifest: Manifest, layout: int) -> bool:
        return [spec.shape for spec in manifest.tensors] == [(layout,)]

    def decode(self, manifest: Manifest, payload: memoryview) -> Blob:
        if [spec.name for spec in manifest.tensors] != ["data"]:
            raise CodecError("no data")
        return Blob(payload[: manifest.tensors[0].nbytes])

    def payload_bytes(self, entry: Blob) -> int:
        return entry.nbytes


_EVEN = bytes(byte & 0xFE for byte in range(256))


def _even(data: bytes | memoryview) -> bytes:
    return bytes(data).translate(_EVEN)


def key_of(number: int, *, tenant: str = "acme", **model: Any) -> VisualKey:
    """The key of a 2 x 1 image that differs by `number`."""
    pixels = number.to_bytes(6, "little")
    return VisualKey("default", tenant, replace(MODEL, **model), pixel_digest(2, 1, pixels), 2, 1)


def entry_of(number: int, nbytes: int = 256) -> Blob:
    """An entry with content of its own."""
    return Blob(random.Random(number).randbytes(256).ljust(nbytes, bytes([number % 256]))[:nbytes])


def decoded_of(number: int, nbytes: int = 256) -> bytes:
    """What every request for `entry_of(number)` must see."""
    return _even(entry_of(number, nbytes).data)


def record_of(number: int, nbytes: int = 256, *, created: float = 1000.0, **key: Any) -> Record:
    name = key_of(number, **key)
    entry = entry_of(number, nbytes)
    info = RecordInfo.of(name, entry.tokens, created, 0.1)
    return build(name.digest, BlobCodec.identity, BlobCodec().prepare(entry).pack(), info, BUFFERS)


def read(tier: Tier, digest: bytes) -> Record | None:
    """What the tier gives for `digest`, verified."""
    reader = RecordReader(digest, None, BUFFERS)
    return reader.record() if tier.get(digest, reader) else None


def content(record: Record) -> tuple[bytes, bytes]:
    return record.head, record.payload.tobytes()


def unused() -> Any:
    """A compile that must not be called."""
    raise AssertionError("compiled although it was stored")


class Clock:
    """Time that tests set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
