"""Segments of chains as they are, bit for bit. Not a choice of the setting `codec`: what is exact stays so."""

from __future__ import annotations

import numpy as np
import torch

from store.codecs.protocol import Prepared
from store.errors import CodecError, Rejected
from store.records.header import Manifest
from store.records.record import Encoded
from store.records.segment import SegmentKV, SegmentLayout
from store.records.tensors import buffer_of, finite, specs_of, tensor_of


class SegmentFormat:
    identity = "segment/1"

    def prepare(self, segment: SegmentKV) -> Prepared[SegmentKV]:
        """Whatever takes time happens in `pack`, the copy from the device too."""

        def pack() -> Encoded:
            tensors = {
                "keys": segment.keys.cpu().contiguous(),
                "values": segment.values.cpu().contiguous(),
                "offsets": _bytes_of(segment.offsets, "<u4"),
                "ids": _bytes_of(segment.ids, "<i8"),
                "start": _bytes_of(torch.tensor([segment.start]), "<u4"),
            }
            if not (finite(tensors["keys"]) and finite(tensors["values"])):
                raise CodecError("numbers that are not finite")
            named = [buffer_of(name, tensor) for name, tensor in tensors.items()]
            return Encoded(named, {"before": segment.before, "entry": segment.entry})

        return Prepared(segment, pack)

    def fits(self, manifest: Manifest, layout: SegmentLayout) -> bool:
        specs = specs_of(manifest)
        try:
            rows, words = specs["keys"][1][2], specs["ids"][1][0]
        except (KeyError, IndexError):
            return False
        tokens = manifest.info.tokens
        whole = rows == words == tokens if not layout.entry else rows <= tokens and not words
        named = {"before": layout.before, "entry": layout.entry}
        return whole and specs == layout.tensors(rows, words) and manifest.attributes == named

    def decode(self, manifest: Manifest, payload: memoryview) -> SegmentKV:
        keys, values = (tensor_of(manifest, payload, name) for name in ("keys", "values"))
        offsets, ids, start = (
            _numbers_of(tensor_of(manifest, payload, name), kind)
            for name, kind in (("offsets", "<u4"), ("ids", "<i8"), ("start", "<u4"))
        )
        tokens = manifest.info.tokens
        if len(offsets) and not (bool((offsets.diff() > 0).all()) and int(offsets[-1]) < tokens):
            raise Rejected("corrupt", "rows that stand nowhere in the segment")
        before, entry = (manifest.attributes.get(name, "") for name in ("before", "entry"))
        return SegmentKV(keys, values, offsets, ids, tokens, int(start[0]), before, entry)


def _bytes_of(numbers: torch.Tensor, kind: str) -> torch.Tensor:
    """[n] -> uint8 [n, bytes of a number], little-endian."""
    packed = np.ascontiguousarray(numbers.cpu().numpy().astype(kind))
    return torch.from_numpy(packed.view(np.uint8).reshape(len(packed), packed.itemsize))


def _numbers_of(packed: torch.Tensor, kind: str) -> torch.Tensor:
    """[n, bytes of a number] -> int64 [n]."""
    return torch.from_numpy(packed.contiguous().numpy().view(kind).astype(np.int64).reshape(-1))


SEGMENTS = SegmentFormat()
