"""Tensors as they are, bit for bit."""

from __future__ import annotations

from store.codecs.protocol import Prepared, register
from store.records.entry import ImageKV
from store.records.header import Manifest
from store.records.record import Encoded
from store.records.tensors import FIELDS, buffer_of, tensor_of


class RawCodec:
    name = "raw"
    identity = "raw/1"

    def on(self, device: str) -> RawCodec:
        """Itself: nothing is decoded."""
        return self

    def prepare(self, entry: ImageKV) -> Prepared[ImageKV]:
        return Prepared(entry, lambda: Encoded([buffer_of(name, getattr(entry, name)) for name in FIELDS]))

    def roundtrip(self, entry: ImageKV) -> ImageKV:
        return self.prepare(entry).entry

    def decode(self, manifest: Manifest, payload: memoryview) -> ImageKV:
        return ImageKV(*(tensor_of(manifest, payload, name) for name in FIELDS))

    def payload_bytes(self, entry: ImageKV) -> int:
        return entry.nbytes


register(RawCodec())
