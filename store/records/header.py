"""The record manifest: what the bytes of a stored entry are, and how to know that they are still those bytes.

    offset  bytes
    0       8      magic "VISKVREC"
    8       2      record version
    10      2      zero
    12      4      length of the whole manifest
    16      4      length of the body
    20      4      number of pieces
    24      32     key digest
    56      body   JSON, UTF-8: codec, tensors, attributes, payload size, what an operator wants to see
    ..      20 x n for each piece: length (4), xxh3-128 of its bytes (16, big-endian as xxhash writes it)
    end-16  16     xxh3-128 of everything before

Integers are little-endian. The place of magic, version, length and the final checksum never changes with the
version, so that an old program can tell a newer record from a broken one. The payload is the pieces one after
another; tensors lie in it at multiples of 64 bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from store.errors import Rejected
from store.records.keys import DIGEST_BYTES, RecordKey

MAGIC = b"VISKVREC"
RECORD_VERSION = 1
PIECE_BYTES = (1 << 20) - 16
ALIGNMENT = 64
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}

_HEAD = struct.Struct(f"<8sHHIII{DIGEST_BYTES}s")
_PIECE = struct.Struct("<I16s")
_CHECKSUM_BYTES = 16


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A little-endian row-major tensor at `offset` bytes of the payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Piece:
    length: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """What an operator wants to know of an entry; no part of its identity. `created` in seconds since the
    epoch, `compile_seconds` is what it would cost to compute again, `model_digest` the hex digest of the
    `ModelKey`. `state` says of a chain's segment whether it is "exact" or "refreshed", else ""."""

    kind: str
    namespace: str
    tenant: str
    model: str
    model_digest: str
    codec: str
    width: int
    height: int
    tokens: int
    created: float
    compile_seconds: float
    state: str = ""

    @classmethod
    def of(cls, key: RecordKey, tokens: int, created: float, compile_seconds: float) -> RecordInfo:
        return cls(
            kind=key.kind,
            namespace=key.namespace,
            tenant=key.tenant,
            model=key.model.model_id,
            model_digest=key.model.digest.hex(),
            codec=key.model.codec,
            width=key.width,
            height=key.height,
            tokens=tokens,
            created=created,
            compile_seconds=compile_seconds,
            state=key.state,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed manifest. `codec` is the codec's identity (name and version); `attributes` are the codec's
    own."""

    digest: bytes
    codec: str
    tensors: tuple[TensorSpec, ...]
    payload_bytes: int
    pieces: tuple[Piece, ...]
    info: RecordInfo
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        body = {
            "codec": self.codec,
            "payload_bytes": self.payload_bytes,
            "tensors": [[t.name, t.dtype, list(t.shape), t.offset] for t in self.tensors],
            "attributes": dict(self.attributes),
            "info": {
                name: value for name, value in asdict(self.info).items() if (name, value) != ("state", "")
            },
        }
        encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
        length = _HEAD.size + len(encoded) + _PIECE.size * len(self.pieces) + _CHECKSUM_BYTES
        head = _HEAD.pack(MAGIC, RECORD_VERSION, 0, length, len(encoded), len(self.pieces), self.digest)
        table = b"".join(_PIECE.pack(piece.length, piece.checksum) for piece in self.pieces)
        front = head + encoded + table
        return front + xxhash.xxh3_128_digest(front)


def checksum(data: bytes | memoryview) -> bytes:
    """xxh3-128, 16 bytes. Guards against damage, not against forgery."""
    return xxhash.xxh3_128_digest(data)


def align(offset: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def piece_lengths(payload_bytes: int) -> tuple[int, ...]:
    """Lengths of the pieces a payload is cut into: all of `PIECE_BYTES` but the last."""
    whole, rest = divmod(payload_bytes, PIECE_BYTES)
    return (PIECE_BYTES,) * whole + ((rest,) if rest else ())


def parse(raw: bytes | memoryview) -> Manifest:
    """Manifest of `raw`; raises Rejected for anything that is not exactly what `Manifest.to_bytes` writes."""
    data = bytes(raw)
    body_length, piece_count, digest = _check_frame(data)
    table_at = _HEAD.size + body_length
    table_end = len(data) - _CHECKSUM_BYTES
    if table_end - table_at != piece_count * _PIECE.size:
        raise Rejected("corrupt", "piece table does not fit the manifest")
    pieces = tuple(Piece(*fields) for fields in _PIECE.iter_unpack(data[table_at:table_end]))
    try:
        manifest = _from_body(digest, pieces, json.loads(data[_HEAD.size : table_at]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise Rejected("corrupt", f"manifest body: {error}") from error
    _check_sizes(manifest)
    return manifest


def _check_frame(data: bytes) -> tuple[int, int, bytes]:
    """Body length, number of pieces and key digest of a manifest whose frame is sound."""
    if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
        raise Rejected("corrupt", "not a record")
    if len(data) < _HEAD.size + _CHECKSUM_BYTES:
        raise Rejected("torn", f"manifest of {len(data)} bytes")
    _, version, zero, length, body_length, piece_count, digest = _HEAD.unpack_from(data)
    if len(data) < length:
        raise Rejected("torn", f"manifest of {len(data)} bytes, {length} expected")
    if len(data) > length or checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
        raise Rejected("corrupt", "manifest checksum")
    if version != RECORD_VERSION or zero:
        raise Rejected("outdated", f"record version {version}")
    return body_length, piece_count, digest


def _from_body(digest: bytes, pieces: tuple[Piece, ...], body: dict[str, Any]) -> Manifest:
    unknown = body.keys() - {"codec", "payload_bytes", "tensors", "attributes", "info"}
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    tensors = tuple(
        TensorSpec(_text(name), _text(dtype), tuple(_count(n) for n in shape), _count(offset))
        for name, dtype, shape, offset in body["tensors"]
    )
    return Manifest(
        digest=digest,
        codec=_text(body["codec"]),
        tensors=tensors,
        payload_bytes=_count(body["payload_bytes"]),
        pieces=pieces,
        info=_info(body["info"]),
        attributes={_text(name): _text(value) for name, value in body["attributes"].items()},
    )


def _info(fields: dict[str, Any]) -> RecordInfo:
    texts = ["kind", "namespace", "tenant", "model", "model_digest", "codec"]
    texts += ["state"] if "state" in fields else []
    counts = ("width", "height", "tokens")
    times = ("created", "compile_seconds")
    checked: dict[str, Any] = {name: _text(fields[name]) for name in texts}
    checked |= {name: _count(fields[name]) for name in counts}
    checked |= {name: _time(fields[name]) for name in times}
    if len(fields) != len(checked):
        raise ValueError("unknown info fields")
    return RecordInfo(**checked)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {value!r}")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"count expected, not {value!r}")
    return value


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"seconds expected, not {value!r}")
    return float(value)


def _check_sizes(manifest: Manifest) -> None:
    lengths: Sequence[int] = [piece.length for piece in manifest.pieces]
    if tuple(lengths) != piece_lengths(manifest.payload_bytes):
        raise Rejected("corrupt", "piece lengths do not make up the payload")
    end = 0
    for tensor in sorted(manifest.tensors, key=lambda t: t.offset):
        if tensor.dtype not in ITEM_BYTES or tensor.offset % ALIGNMENT or tensor.offset < end:
            raise Rejected("corrupt", f"tensor {tensor.name}")
        end = tensor.offset + tensor.nbytes
    if end > manifest.payload_bytes:
        raise Rejected("corrupt", "tensors reach past the payload")
