"""The manifest parser: all that is not exactly what was written is rejected, with the right reason."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from store.errors import Rejected
from store.records.header import ALIGNMENT, PIECE_BYTES, Manifest, TensorSpec, checksum, parse, piece_lengths
from store.records.record import Encoded, NamedBuffer, RecordReader, build
from tests.store.samples import BUFFERS, key_of, record_of

INFO = record_of(1).manifest.info
TWO = [
    NamedBuffer("a", "uint8", (100,), memoryview(b"a" * 100)),
    NamedBuffer("b", "uint8", (100,), memoryview(b"b" * 100)),
]
MANIFEST = build(key_of(1).digest, "blob/1", Encoded(TWO, {"group": "64"}), INFO, BUFFERS).manifest
RAW = MANIFEST.to_bytes()


def rejected(raw: bytes) -> str:
    with pytest.raises(Rejected) as caught:
        parse(raw)
    return caught.value.reason


def resealed(front: bytes) -> bytes:
    """With a fresh checksum, as only a program that writes manifests would make it."""
    return front + xxhash.xxh3_128_digest(front)


def with_body(change: Any) -> bytes:
    length = struct.unpack_from("<I", RAW, 16)[0]
    body = json.loads(RAW[56 : 56 + length])
    change(body)
    encoded = json.dumps(body).encode()
    table = RAW[56 + length : -16]
    total = 56 + len(encoded) + len(table) + 16
    head = struct.pack("<8sHHIII32s", RAW[:8], 1, 0, total, len(encoded), len(table) // 20, MANIFEST.digest)
    return resealed(head + encoded + table)


def test_reads_back_what_was_written() -> None:
    assert parse(RAW) == MANIFEST
    assert parse(memoryview(RAW)) == MANIFEST


@given(st.integers(0, len(RAW) - 1))
def test_every_truncation_is_torn_or_corrupt(length: int) -> None:
    assert rejected(RAW[:length]) == ("torn" if length else "corrupt")


@given(st.integers(0, len(RAW) * 8 - 1))
def test_every_flipped_bit_is_rejected(bit: int) -> None:
    damaged = bytearray(RAW)
    damaged[bit // 8] ^= 1 << bit % 8
    assert rejected(bytes(damaged)) in ("corrupt", "torn")


@given(st.binary(max_size=300))
def test_noise_is_corrupt(noise: bytes) -> None:
    assert rejected(noise) in ("corrupt", "torn")


def test_longer_is_corrupt() -> None:
    assert rejected(RAW + b"\0") == "corrupt"


def test_c8_another_record_version_is_outdated() -> None:
    newer = bytearray(RAW[:-16])
    newer[8] = 2
    assert rejected(resealed(bytes(newer))) == "outdated"


def _set(path: str, value: Any) -> Any:
    def change(body: dict[str, Any]) -> None:
        *way, last = path.split(".")
        for step in way:
            body = body[int(step)] if isinstance(body, list) else body[step]
        if isinstance(body, list):
            body[int(last)] = value
        else:
            body[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("codec", 3),
        ("payload_bytes", -1),
        ("payload_bytes", True),
        ("payload_bytes", 64),
        ("payload_bytes", 1 << 40),
        ("surprise", 1),
        ("info", {}),
        ("info", None),
        ("info.surprise", 1),
        ("info.width", "2"),
        ("info.created", "soon"),
        ("info.created", "12"),
        ("info.created", True),
        ("info.created", float("nan")),
        ("info.created", float("inf")),
        ("info.created", 10**400),
        ("info.compile_seconds", float("nan")),
        ("attributes", {"a": 1}),
        ("attributes", []),
        ("tensors", None),
        ("tensors.0", ["keys", "float32", [1]]),
        ("tensors.0.1", "complex64"),
        ("tensors.0.2", [-1, 2]),
        ("tensors.0.2", [1 << 40, 1 << 40]),
        ("tensors.0.3", 1),
        ("tensors.1.3", 0),
    ],
)
def test_a_body_that_makes_no_sense_is_corrupt(path: str, value: Any) -> None:
    assert parse(with_body(lambda body: None)) == MANIFEST
    assert rejected(with_body(_set(path, value))) == "corrupt"


@given(st.integers(0, 3 * PIECE_BYTES))
def test_piece_lengths_add_up(nbytes: int) -> None:
    lengths = piece_lengths(nbytes)
    assert sum(lengths) == nbytes
    assert all(0 < length <= PIECE_BYTES for length in lengths)


def test_tensors_are_aligned_and_padding_is_zero() -> None:
    buffers = [
        NamedBuffer("a", "uint8", (3,), memoryview(b"\xff" * 3)),
        NamedBuffer("b", "uint8", (5,), memoryview(b"\xee" * 5)),
    ]
    record = build(key_of(1).digest, "any/1", Encoded(buffers), INFO, BUFFERS)
    assert [spec.offset for spec in record.manifest.tensors] == [0, ALIGNMENT]
    assert record.payload.tobytes() == b"\xff" * 3 + bytes(61) + b"\xee" * 5


def test_a_record_without_tensors_is_sound() -> None:
    record = build(key_of(1).digest, "any/1", Encoded([]), INFO, BUFFERS)
    reader = RecordReader(record.digest, "any/1", BUFFERS)
    assert reader.manifest(record.head).pieces == ()
    assert reader.record().payload.nbytes == 0


class TestReader:
    def reader(self, number: int, codec: str | None = "blob/1") -> RecordReader:
        return RecordReader(key_of(number).digest, codec, BUFFERS)

    def reason(self, call: Any, *arguments: Any) -> str:
        with pytest.raises(Rejected) as caught:
            call(*arguments)
        return caught.value.reason

    def test_c10_a_record_of_another_key_is_corrupt(self) -> None:
        assert self.reason(self.reader(2).manifest, record_of(1).head) == "corrupt"

    def test_c8_another_codec_is_outdated(self) -> None:
        assert self.reason(self.reader(1, "blob/2").manifest, RAW) == "outdated"
        assert self.reader(1, None).manifest(RAW) == MANIFEST

    def test_pieces_must_come_whole_in_order_and_number(self) -> None:
        record = record_of(1, 2 * PIECE_BYTES + 5)
        pieces = [bytes(piece) for piece in record.pieces()]
        assert len(pieces) == 3
        reader = self.reader(1)
        reader.manifest(record.head)
        assert self.reason(reader.piece, pieces[1]) == "corrupt"
        reader = self.reader(1)
        reader.manifest(record.head)
        assert self.reason(reader.piece, pieces[0][:-1]) == "torn"
        assert self.reason(reader.piece, pieces[0] + b"x") == "corrupt"
        reader.piece(pieces[0])
        assert self.reason(reader.record) == "torn"
        reader.piece(pieces[1])
        reader.piece(pieces[2])
        assert self.reason(reader.piece, b"") == "corrupt"
        assert reader.record().payload == record.payload

    def test_what_is_verified_is_the_copy_that_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A mapped file may change while it is read."""
        record = record_of(1)
        source = bytearray(record.payload)

        def changed_meanwhile(data: memoryview) -> bytes:
            source[:] = bytes(len(source))
            return checksum(data)

        monkeypatch.setattr("store.records.record.checksum", changed_meanwhile)
        reader = self.reader(1)
        reader.manifest(record.head)
        reader.piece(memoryview(source))
        assert reader.record().payload == record.payload and not any(source)

    def test_nothing_comes_before_the_manifest(self) -> None:
        assert self.reason(self.reader(1).piece, b"abc") == "corrupt"
        assert self.reason(self.reader(1).record) == "torn"


def test_tensor_sizes() -> None:
    assert TensorSpec("x", "bfloat16", (2, 3), 0).nbytes == 12
    assert TensorSpec("x", "float32", (0, 3), 0).nbytes == 0


def test_a_manifest_is_a_value() -> None:
    again = Manifest(
        MANIFEST.digest,
        MANIFEST.codec,
        MANIFEST.tensors,
        MANIFEST.payload_bytes,
        MANIFEST.pieces,
        MANIFEST.info,
        MANIFEST.attributes,
    )
    assert again.to_bytes() == RAW
    assert replace(MANIFEST, codec="blob/9").to_bytes() != RAW
    assert record_of(1, PIECE_BYTES).manifest.pieces[0].length == PIECE_BYTES
