"""One record in the server. It is one key, so that a server that evicts takes all of it or nothing of it.

    vkv:{<digest>}              hash: m -> 8 bytes that name this write, then the manifest
                                      <write>:<n> -> piece n
    vkv:{<digest>}:<write>      the same while it is written: a draft that lives for a minute unless it is renamed

Digest and write in hex; the braces keep both keys in one slot of a cluster. The write in the names of the pieces keeps
a reader from mixing a record with one that replaces it meanwhile. Pieces travel in small windows, so that other
clients of a server with one thread are not kept waiting and replies do not pile up in its memory.
"""

from __future__ import annotations

import os
from typing import Any

from store.errors import Rejected, TierFull
from store.records.header import Manifest
from store.records.record import Record
from store.tiers.protocol import Sink

MANIFEST = "m"
DRAFT_SECONDS = 60
_WINDOW = 4
_ID_BYTES = 8


def record_key(digest: bytes) -> str:
    return f"vkv:{{{digest.hex()}}}"


def manifest_of(value: bytes) -> memoryview:
    """The manifest in the field `m`."""
    return memoryview(value)[_ID_BYTES:]


class Draft:
    """A record that is being written, under a name of its own until it is whole."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._write = os.urandom(_ID_BYTES)
        self.key = f"{record_key(record.digest)}:{self._write.hex()}"

    def send(self, client: Any) -> None:
        """The manifest first, in one packet with the time to live, so that no draft is ever without one."""
        self._put(client, {MANIFEST: self._write + self._record.head})
        pieces = list(self._record.pieces())
        names = _fields(self._write, len(pieces))
        for first in range(0, len(pieces), _WINDOW):
            window = slice(first, first + _WINDOW)
            self._put(client, dict(zip(names[window], pieces[window], strict=True)))
        if client.hlen(self.key) != len(pieces) + 1:
            raise TierFull("server_full", "the server evicted what was being written")

    def publish(self, client: Any) -> None:
        """In place of what is there. A writer that dies in between leaves a record that goes within the minute."""
        client.rename(self.key, record_key(self._record.digest))
        client.persist(record_key(self._record.digest))

    def _put(self, client: Any, fields: dict[str, Any]) -> None:
        pipeline = client.pipeline(transaction=False)
        pipeline.hset(self.key, mapping=fields)
        pipeline.expire(self.key, DRAFT_SECONDS)
        pipeline.execute()


def record_bytes(value: bytes, manifest: Manifest) -> int:
    """Size of a record with that field `m`."""
    return len(value) - _ID_BYTES + manifest.payload_bytes


def push(client: Any, digest: bytes, sink: Sink) -> int | None:
    """The record into `sink`; its size, None if there is none. Raises Rejected."""
    key = record_key(digest)
    head = client.hget(key, MANIFEST)
    if head is None:
        return None
    manifest = sink.manifest(manifest_of(head))
    names = _fields(head[:_ID_BYTES], len(manifest.pieces))
    for first in range(0, len(names), _WINDOW):
        for number, piece in enumerate(client.hmget(key, names[first : first + _WINDOW]), first):
            if piece is not None:
                sink.piece(piece)
            elif client.hget(key, MANIFEST) == head:
                raise Rejected("torn", f"piece {number} is missing")
            else:
                # Removed or replaced meanwhile, by somebody who had every right to.
                return None
    return record_bytes(head, manifest)


def _fields(write: bytes, count: int) -> list[str]:
    return [f"{write.hex()}:{number}" for number in range(count)]
