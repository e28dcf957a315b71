"""A record becomes an entry while a tier is read, so that the tier counts and drops what does not pass."""

from __future__ import annotations

from typing import Generic

from store.codecs.protocol import Format
from store.errors import CodecError, Rejected
from store.records.buffers import BufferPool
from store.records.header import Manifest, RecordInfo
from store.records.keys import RecordKey
from store.records.record import Record, RecordReader
from store.residency.decoded import E


class EntryReader(Generic[E]):
    """A `Sink` that believes nothing: the record is checked against its own checksums, the key that was asked for, and
    the layout that is expected (None: any) before it is decoded, and its numbers when it is. One use."""

    def __init__(self, key: RecordKey, codec: Format[E], layout: object, buffers: BufferPool) -> None:
        self.digest = key.digest
        self._key = key
        self._codec = codec
        self._layout = layout
        self._reader = RecordReader(self.digest, codec.identity, buffers)
        self._entry: E | None = None

    def manifest(self, raw: bytes | memoryview) -> Manifest:
        manifest = self._reader.manifest(raw)
        info = manifest.info
        if info != RecordInfo.of(self._key, info.tokens, info.created, info.compile_seconds):
            raise Rejected("corrupt", "what it says of itself belongs to another key")
        if self._layout is not None and not self._codec.fits(manifest, self._layout):
            raise Rejected("outdated", "tensors of another layout")
        return manifest

    def piece(self, data: bytes | memoryview) -> None:
        self._reader.piece(data)
        if self._reader.complete:
            self._entry = self._decoded(self._reader.record())

    def loaded(self) -> tuple[E, Record]:
        """Raises Rejected if something is missing."""
        record = self._reader.record()
        if self._entry is None:
            raise Rejected("torn", "no payload")
        return self._entry, record

    def _decoded(self, record: Record) -> E:
        try:
            entry = self._codec.decode(record.manifest, record.payload)
        except CodecError as error:
            raise Rejected("corrupt", str(error)) from error
        if entry.tokens != record.manifest.info.tokens:
            raise Rejected("corrupt", f"{entry.tokens} tokens, {record.manifest.info.tokens} by what it says")
        return entry
