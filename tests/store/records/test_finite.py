"""No record with a number that is not finite is served, wherever in it the number lies."""

from __future__ import annotations

import numpy as np
import pytest

from store.errors import Rejected
from store.records.header import PIECE_BYTES
from store.records.record import Encoded, NamedBuffer, RecordReader, build
from tests.store.samples import BUFFERS, key_of, record_of

# Bit patterns of one number each, in integers as wide.
WIDE = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


def passes(dtype: str, bits: np.ndarray) -> bool:
    buffers = [
        NamedBuffer("codes", "uint8", (3,), memoryview(b"\xff" * 3)),
        NamedBuffer("numbers", dtype, bits.shape, memoryview(bits)),
        NamedBuffer("more", "uint8", (100,), memoryview(b"\xff" * 100)),
    ]
    info = record_of(1).manifest.info
    record = build(key_of(1).digest, "any/1", Encoded(buffers), info, BUFFERS)
    reader = RecordReader(record.digest, "any/1", BUFFERS)
    reader.manifest(record.head)
    try:
        for piece in record.pieces():
            reader.piece(piece)
    except Rejected as error:
        assert (error.reason, "numbers" in error.detail) == ("outdated", True)
        return False
    return True


@pytest.mark.parametrize("dtype", WIDE)
def test_every_kind_of_number(dtype: str) -> None:
    infinity = INFINITY[dtype]
    sign = 1 << (8 * np.dtype(WIDE[dtype]).itemsize - 1)
    for pattern in (0, 1, infinity - 1, infinity // 2):
        assert passes(dtype, np.array([pattern, pattern | sign], WIDE[dtype]))
    for pattern in (infinity, infinity + 1, sign - 1):
        assert not passes(dtype, np.array([0, pattern], WIDE[dtype]))
        assert not passes(dtype, np.array([pattern | sign, 0], WIDE[dtype]))


@pytest.mark.parametrize("dtype", WIDE)
def test_every_place_in_records_of_several_pieces(dtype: str) -> None:
    width = np.dtype(WIDE[dtype]).itemsize
    count = 2 * PIECE_BYTES // width + 100
    # The tensor begins 64 bytes into the payload.
    edges = [(k * PIECE_BYTES - 64) // width for k in (1, 2)]
    for place in [0, count - 1, *(edge + step for edge in edges for step in (-1, 0))]:
        bits = np.zeros(count, WIDE[dtype])
        assert passes(dtype, bits)
        bits[place] = INFINITY[dtype] + 1
        assert not passes(dtype, bits)
