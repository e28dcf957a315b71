"""Stored rows of images and texts -> the request's KV at target positions."""

from __future__ import annotations

from collections.abc import Sequence

from engine.families.base import Rope
from engine.passes.kv import RequestKV
from engine.passes.rotation import rotate
from engine.passes.turns import TextKV
from engine.prompt.layout import Span
from store.records.entry import ImageKV


def restore(kv: RequestKV, spans: Sequence[Span], entries: Sequence[ImageKV | TextKV], rope: Rope) -> None:
    """Write the entry of each span into its slots, keys rotated to where they now stand (`rope` is the prompt's).

    All layers of a span in one go: one rotation and one copy (refresh.md P6). Entries are only read.
    """
    for span, entry in zip(spans, entries, strict=True):
        slots = slice(span.start, span.stop)
        device = kv.keys.device
        rotate(entry.keys.to(device, non_blocking=True), rope.at(slots), out=kv.keys[:, :, slots])
        kv.values[:, :, slots].copy_(entry.values, non_blocking=True)
