"""Tensors as they are, bit for bit."""

from __future__ import annotations

from store.codecs.protocol import Prepared, register
from store.errors import CodecError
from store.records.entry import ImageKV, Layout
from store.records.header import Manifest
from store.records.record import Encoded
from store.records.tensors import FIELDS, buffer_of, check_axes, sound, specs_of, tensor_of


class RawCodec:
    name = "raw"
    identity = "raw/1"

    def on(self, device: str) -> RawCodec:
        """Itself: nothing is decoded."""
        return self

    def prepare(self, entry: ImageKV) -> Prepared[ImageKV]:
        kept = sound(entry)

        def pack() -> Encoded:
            if not kept:
                raise CodecError("numbers that are not finite")
            return Encoded([buffer_of(name, getattr(entry, name)) for name in FIELDS])

        return Prepared(entry, pack, kept)

    def roundtrip(self, entry: ImageKV) -> ImageKV:
        return self.prepare(entry).entry

    def fits(self, manifest: Manifest, layout: Layout) -> bool:
        return specs_of(manifest) == layout.tensors and not manifest.attributes

    def decode(self, manifest: Manifest, payload: memoryview) -> ImageKV:
        tensors = {name: tensor_of(manifest, payload, name) for name in FIELDS}
        check_axes(tensors)
        return ImageKV(**tensors)

    def payload_bytes(self, entry: ImageKV) -> int:
        return entry.nbytes


register(RawCodec())
