"""Records inside a transaction: three databases, `records` (digest -> manifest), `pieces` (digest + number -> bytes)
and `usage` (digest -> last use, uses).

A piece and LMDB's page header fill whole pages, and pieces of one size keep the file from fragmenting. A record exists
from the commit of its manifest, which comes after its pieces and goes with them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from store.errors import Rejected, RejectReason
from store.records.header import Manifest, parse
from store.records.keys import DIGEST_BYTES
from store.records.record import Record
from store.residency.index import Row
from store.tiers.lmdb.native import Opened
from store.tiers.protocol import Sink

DATABASES = ("records", "pieces", "usage")
_USAGE = struct.Struct("<dQ")
_NUMBER = struct.Struct(">I")
_AFTER = b"\xff" * (_NUMBER.size + 1)
_BUMP_KEY = b"bump"


def push(transaction: Any, opened: Opened, digest: bytes, sink: Sink) -> int | None:
    """Read a record into `sink`: bytes pushed, None if there is no such record. Raises Rejected."""
    head = transaction.get(digest, db=opened["records"])
    if head is None:
        return None
    manifest = sink.manifest(head)
    for number in range(len(manifest.pieces)):
        piece = transaction.get(digest + _NUMBER.pack(number), db=opened["pieces"])
        if piece is None:
            raise Rejected("torn", f"piece {number} is missing")
        sink.piece(piece)
    return manifest.payload_bytes


def put_pieces(
    transaction: Any, opened: Opened, digest: bytes, first: int, pieces: Iterable[memoryview]
) -> None:
    for number, piece in enumerate(pieces, first):
        transaction.put(digest + _NUMBER.pack(number), piece, db=opened["pieces"])


def put_head(transaction: Any, opened: Opened, record: Record, when: float) -> None:
    """With this commit the record exists."""
    put_usage(transaction, opened, [Row(record.digest, record.manifest.info, record.nbytes, when)])
    transaction.put(record.digest, record.head, db=opened["records"])


def put_usage(transaction: Any, opened: Opened, rows: Iterable[Row]) -> None:
    for row in rows:
        transaction.put(row.digest, _USAGE.pack(row.last_used, row.hits), db=opened["usage"])


def bump(transaction: Any, opened: Opened) -> None:
    """Change something that means nothing."""
    transaction.put(_BUMP_KEY, _USAGE.pack(0.0, transaction.id()), db=opened["usage"])


def remove(transaction: Any, opened: Opened, digest: bytes) -> bool:
    """All of a record, or what there is of it; True if it existed."""
    found = bool(transaction.delete(digest, db=opened["records"]))
    transaction.delete(digest, db=opened["usage"])
    cursor = transaction.cursor(db=opened["pieces"])
    more = cursor.set_range(digest)
    while more and cursor.key()[:DIGEST_BYTES] == digest:
        more = cursor.delete()
    return found


def rows(
    transaction: Any, opened: Opened, known: Mapping[bytes, Row]
) -> tuple[list[Row], dict[bytes, RejectReason]]:
    """All records, those in `known` as they are there; and why others cannot be read."""
    found: list[Row] = []
    unreadable: dict[bytes, RejectReason] = {}
    for key, head in transaction.cursor(db=opened["records"]):
        digest = bytes(key)
        row = known.get(digest)
        if row is None:
            try:
                manifest = _manifest(digest, head)
            except Rejected as error:
                unreadable[digest] = error.reason
                continue
            row = _row(manifest, len(head), transaction.get(digest, db=opened["usage"]))
        found.append(row)
    return found, unreadable


def _manifest(digest: bytes, head: bytes | memoryview) -> Manifest:
    manifest = parse(head)
    if manifest.digest != digest:
        raise Rejected("corrupt", "record of another key")
    return manifest


def _row(manifest: Manifest, head_bytes: int, usage: bytes | memoryview | None) -> Row:
    last_used, hits = manifest.info.created, 0
    if usage is not None and len(usage) == _USAGE.size:
        last_used, hits = _USAGE.unpack(usage)
    # Usage has no checksum; what it says decides nothing but the order of eviction.
    if not math.isfinite(last_used):
        last_used = 0.0
    return Row(manifest.digest, manifest.info, head_bytes + manifest.payload_bytes, last_used, hits)


def damaged(transaction: Any, opened: Opened, digest: bytes) -> bool:
    """Whether there is something under `digest` that is no manifest of it."""
    head = transaction.get(digest, db=opened["records"])
    try:
        return head is not None and not _manifest(digest, head)
    except Rejected:
        return True


def orphans(transaction: Any, opened: Opened) -> list[bytes]:
    """Digests of pieces without a manifest: the process died in between, or could not go on."""
    found = []
    cursor = transaction.cursor(db=opened["pieces"])
    more = cursor.first()
    while more:
        digest = bytes(cursor.key())[:DIGEST_BYTES]
        if transaction.get(digest, db=opened["records"]) is None:
            found.append(digest)
        more = cursor.set_range(digest + _AFTER)
    return found
