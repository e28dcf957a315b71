from __future__ import annotations

import contextlib
import dataclasses
import json
import random

import pytest

from service.files.record import FILE_ID, FileRecord, new_id, read, written

RECORD = FileRecord(new_id(), "alice", "ä page.png", "vision", "png", 7, "ab" * 32, 1, 1000.5, None)


def test_a_record_is_read_as_it_was_written() -> None:
    assert read(written(RECORD)) == RECORD
    over = dataclasses.replace(RECORD, expires_at=2000.25, pages=3)
    assert read(written(over)) == over


def test_a_record_with_any_bit_flipped_is_none() -> None:
    """A bit of the tenant's name would give the file to somebody else."""
    line, rng = written(RECORD).rstrip(), random.Random(3)
    for place in range(len(line)):
        damaged = bytearray(line)
        damaged[place] ^= 1 << rng.randrange(8)
        with contextlib.suppress(ValueError):
            assert read(bytes(damaged)) == RECORD, damaged  # in the blanks between two fields, say


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, written(RECORD)[:-9]])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        read(line)


def test_fields_that_are_not_ours_are_refused_even_with_their_checksum() -> None:
    body = json.loads(written(RECORD))
    del body["record"]["tenant"]
    with pytest.raises(ValueError):
        read(json.dumps(body).encode())


def test_an_id_is_a_plain_name_and_never_twice_the_same() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(FILE_ID.fullmatch(name) for name in ids)
