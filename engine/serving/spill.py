"""Segments of one prompt in the store's tiers: written behind a request, found by the next, after a restart too."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.chains.held import EXACT, Held, Taken
from engine.chains.segments import TEXT_BLOCK, Content, Segment, common_head, segments_of
from engine.passes.compile import entry_layout
from engine.passes.rotation import rotate
from engine.prompt.layout import Ints, PromptLayout
from engine.serving.entries import Gone, stored
from engine.serving.runtime import Runtime
from store.codecs.segment import SEGMENTS
from store.records.keys import SegmentKey, VisualKey
from store.records.segment import SegmentKV, SegmentLayout
from store.stack import Missed

# Segments of one prompt that a pin reaches: there are only so many pins, and a head is of use without its end.
MOST_PINNED = 64

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Spill:
    """The sequence `content`, laid out as `layout`, with the keys of its images' entries (one per span). Its segments
    are exact, or as `recipe` left them."""

    runtime: Runtime
    content: Content
    layout: PromptLayout
    keys: Sequence[VisualKey]
    recipe: str | None

    def load(self, segment: Segment) -> Taken | None:
        """What the tiers have of a segment: all of it, or of a text the beginning."""
        for quality in self._qualities:
            held = self._read(segment, quality, open=False)
            if held is not None:
                return Taken(held, segment.tokens)
        for quality in () if segment.image else self._qualities:
            held = self._read(segment, quality, open=True)
            tokens = 0 if held is None else common_head(self._ids(segment), held.ids)
            if held is not None and tokens:
                return Taken(held, tokens)
        return None

    def write(self, since: int, row_seconds: float, pin_seconds: float | None = None) -> None:
        """Have written what is held of the sequence and is not yet; what is counts as used. Computing a row took
        `row_seconds`. With `pin_seconds` its beginning is kept from ordinary eviction for that long."""
        path: list[bytes] = []

        def write(segment: Segment, taken: Taken, last: bool) -> None:
            key, tokens = self._key_of(segment, taken, last)
            path.append(key.digest)
            written = taken.held.written
            if key.digest not in written and self._offer(key, taken.held, tokens, row_seconds):
                written.add(key.digest)

        store = self.runtime.store.segments
        if store:
            self.runtime.chains.write_out(self.content, self.recipe, since, write, store.discard)
            # The end of a chain goes before its beginning.
            store.touch(path[::-1])
        if store and pin_seconds is not None:
            store.pin(path[:MOST_PINNED], pin_seconds)

    @property
    def _qualities(self) -> tuple[str, ...]:
        return (EXACT,) if self.recipe is None else (EXACT, self.recipe)

    def _ids(self, segment: Segment) -> Ints:
        return self.content.ids[segment.start : segment.stop]

    def _key_of(self, segment: Segment, taken: Taken, last: bool) -> tuple[SegmentKey, int]:
        """Under which key a segment is written, and how much of what holds it. A text that the chain ends with is named
        by what comes before it, so that it is found to the token by whatever goes on from there."""
        held, tenant = taken.held, self.content.tenant
        if last and taken.text and segment.tokens < TEXT_BLOCK:
            key = self.runtime.segment_key(tenant, segment.before, held.quality, open=True)
            return key, held.segment.tokens
        return self.runtime.segment_key(tenant, segment.name, held.quality), taken.tokens

    def _offer(self, key: SegmentKey, held: Held, tokens: int, row_seconds: float) -> bool:
        rows = 0 if held.as_stored else tokens if held.offsets is None else held.rows
        offsets = torch.arange(rows) if held.offsets is None else held.offsets
        segment = SegmentKV(
            held.keys[:, :, :rows],
            held.values[:, :, :rows],
            offsets,
            torch.tensor(held.ids[:tokens]),
            tokens,
            held.segment.start,
            held.segment.before.hex(),
            self._entry_key(held.segment),
        )
        # Of an exact segment there is one; of others the newest has the most rows.
        replaces = key.open or held.quality != EXACT
        prepared, seconds = SEGMENTS.prepare(segment), tokens * row_seconds
        return self.runtime.store.segments.offer(key, SEGMENTS, prepared, seconds, replaces)

    def _entry_key(self, segment: Segment) -> str:
        return self._entry_of(segment).hex if segment.image else ""

    def _entry_of(self, segment: Segment) -> VisualKey:
        place = next(i for i, span in enumerate(self.layout.spans) if span.start == segment.start)
        return self.keys[place]

    def _read(self, segment: Segment, quality: str, open: bool) -> Held | None:
        """What a record holds, in memory of its own on the model's device. What is not as it should be is a miss."""
        runtime, shape = self.runtime, self.runtime.family.shape
        name = segment.before if open else segment.name
        key = runtime.segment_key(self.content.tenant, name, quality, open)
        layout = SegmentLayout(
            shape.layers,
            shape.kv_heads,
            shape.head_dim,
            str(runtime.family.dtype).removeprefix("torch."),
            segment.before.hex(),
            self._entry_key(segment),
        )
        found = runtime.store.segments.load(key, SEGMENTS, layout)
        if isinstance(found, Missed):
            if found.outcome != "miss":
                runtime.chains.lost(found.outcome)
            return None
        try:
            if not open and not segment.image and not np.array_equal(found.ids, self._ids(segment)):
                raise ValueError("a text that is not the one of its name")
            return self._held(segment, quality, found, key)
        except Gone:
            runtime.chains.lost("entry")
        except ValueError as error:
            log.error("the record of a chain is of no use: %s", error)
            runtime.chains.lost("corrupt")
            runtime.store.segments.discard(key.digest)
        return None

    def _held(self, segment: Segment, quality: str, found: SegmentKV, key: SegmentKey) -> Held:
        """Raises `Gone`, and ValueError for what makes no sense."""
        if found.start != segment.start:
            raise ValueError(f"it begins at slot {found.start} instead of {segment.start}")
        if segment.image and found.tokens != segment.tokens:
            raise ValueError(f"an image of {found.tokens} tokens instead of {segment.tokens}")
        device, rows = self.runtime.family.device, len(found.offsets)
        keys, values = (tensor.to(device, copy=True) for tensor in (found.keys, found.values))
        offsets: torch.Tensor | None = found.offsets.to(device)
        as_stored = segment.image and quality == EXACT and not rows
        if as_stored:
            keys, values = self._restored(segment)
        if as_stored or rows == found.tokens:
            offsets = None
        elif quality == EXACT:
            raise ValueError(f"{rows} of {found.tokens} rows of an exact segment")
        ids = found.ids.numpy()
        whole = segment if segment.image else self._text(segment, ids)
        held = Held(whole, self.content.tenant, quality, ids, offsets, keys, values, time.time(), as_stored)
        held.written.add(key.digest)
        return held

    def _text(self, segment: Segment, ids: Ints) -> Segment:
        """The text that stands where `segment` begins, under its own name."""
        spliced = replace(self.content, ids=np.concatenate((self.content.ids[: segment.start], ids)))
        *_, text = segments_of(spliced, len(spliced.ids))
        if text.start != segment.start:
            raise ValueError(f"{len(ids)} tokens of text in one segment")
        return text

    def _restored(self, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of an image's entry where the segment stands. Raises `Gone`."""
        family, slots = self.runtime.family, slice(segment.start, segment.stop)
        span = next(span for span in self.layout.spans if span.start == segment.start)
        with stored(self.runtime, self._entry_of(segment), entry_layout(family, span.shape)) as fetched:
            rope = family.rope(torch.as_tensor(self.layout.positions))
            keys = torch.empty_like(fetched.entry.keys, device=family.device)
            rotate(fetched.entry.keys.to(family.device), rope.at(slots), out=keys)
            return keys, fetched.entry.values.to(family.device, copy=True)
