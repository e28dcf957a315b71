"""Where everything of a prompt stands: token ids, image spans, positions, and the rows that ask the question.

Slots are indices into the prompt, in sequence order; every pass of the engine speaks of slots. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidPrompt
from engine.families.span import SpanShape

Ints = NDArray[np.int64]
NO_SLOTS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The run of slots that one image takes. `image` indexes the request's images."""

    image: int
    start: int
    shape: SpanShape

    @property
    def tokens(self) -> int:
        """Visual tokens; the span may have text rows of its own beside them."""
        return self.shape.tokens

    @property
    def stop(self) -> int:
        return self.start + self.shape.rows

    def visual_slots(self) -> Ints:
        return self.start + np.flatnonzero(self.shape.visual)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A run of text in slots [start, stop)."""

    start: int
    stop: int


Span = ImageSpan | TextSpan


@dataclass(frozen=True, slots=True)
class Query:
    """The rows that score visual tokens: the last user message and the template's end.

    `slots` are prompt slots, or, for a question that stands before the images, scratch slots behind the prompt (a
    ghost copy of the question, placed after the last image; its KV is never part of the prompt).
    `ids` [rows], `positions` [3, rows].
    """

    ids: Ints
    slots: Ints
    positions: Ints


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """`ids` [slots] (image token where a visual token stands), `positions` [3, slots] (M-RoPE: time, row, column; all
    the same in a model with one position a row), `next_position` is that of the first generated token. `exact` are the
    spans whose KV under full prefill equals the stored entry, because all before them is the canonical prefix. Nothing
    before slot `asked` belongs to the user's question."""

    ids: Ints
    spans: tuple[ImageSpan, ...]
    positions: Ints
    next_position: int
    query: Query
    exact: tuple[ImageSpan, ...]
    asked: int = 0

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def visual_tokens(self) -> int:
        return sum(span.tokens for span in self.spans)

    def restored_slots(self) -> Ints:
        """Slots of all images, an image's own text among them: what entries fill."""
        return _joined([np.arange(span.start, span.stop) for span in self.spans])

    def visual_slots(self) -> Ints:
        return visual_slots(self.spans)

    def text_slots(self) -> Ints:
        """Slots of all text but an image's own."""
        is_text = np.ones(self.length, dtype=bool)
        is_text[self.restored_slots()] = False
        return np.flatnonzero(is_text)

    def candidates(self) -> Ints:
        """Visual slots that a refresh may choose: all but those of exact spans."""
        return visual_slots([span for span in self.spans if span not in self.exact])

    def tail(self) -> Ints:
        """The text run behind the last image (the whole prompt where there is none)."""
        start = self.spans[-1].stop if self.spans else 0
        return np.arange(start, self.length)


def visual_slots(spans: Sequence[ImageSpan]) -> Ints:
    return _joined([span.visual_slots() for span in spans])


def offered_slots(spans: Sequence[Span]) -> Ints:
    """What of spans a refresh may choose: the visual slots of images, every slot of texts."""
    return _joined([_offered(span) for span in spans])


def _offered(span: Span) -> Ints:
    return span.visual_slots() if isinstance(span, ImageSpan) else np.arange(span.start, span.stop)


def own_text_slots(spans: Sequence[ImageSpan]) -> Ints:
    """Slots of the text that belongs to images."""
    return _joined([span.start + np.flatnonzero(~span.shape.visual) for span in spans])


def _joined(runs: Sequence[Ints]) -> Ints:
    return np.concatenate(runs) if runs else NO_SLOTS


def positions_of(length: int, spans: Sequence[ImageSpan]) -> tuple[Ints, int]:
    """Positions [3, length] and the next free one. Text advances all three axes by one, an image as its shape says."""
    positions = np.empty((3, length), dtype=np.int64)
    slot = position = 0
    for span in spans:
        text = span.start - slot
        positions[:, slot : span.start] = np.arange(position, position + text)
        position += text
        positions[:, span.start : span.stop] = position + span.shape.positions
        position += span.shape.advance
        slot = span.stop
    positions[:, slot:] = np.arange(position, position + length - slot)
    return positions, position + length - slot


def place(
    ids: Sequence[int], image_token: int, images: Sequence[tuple[int, SpanShape]]
) -> tuple[Ints, tuple[ImageSpan, ...]]:
    """Widen each image placeholder of `ids` to the image's rows. `images` holds (image, shape) in prompt order.

    Spans come from the shapes, never from the length of a run: adjacent images have no token between them.
    """
    widened: list[int] = []
    spans: list[ImageSpan] = []
    remaining = iter(images)
    for token in ids:
        if token != image_token:
            widened.append(token)
            continue
        placed = next(remaining, None)
        if placed is None:
            raise InvalidPrompt("messages: the text spells an image placeholder")
        image, shape = placed
        spans.append(ImageSpan(image, len(widened), shape))
        widened.extend(shape.ids.tolist())
    return np.asarray(widened, dtype=np.int64), tuple(spans)


def tail_query(ids: Ints, positions: Ints, start: int) -> Query:
    """The rows from slot `start` to the end of the prompt, where they stand."""
    slots = np.arange(start, len(ids))
    return Query(ids[start:], slots, positions[:, start:])


def ghost_query(
    ids: Ints, positions: Ints, tail_start: int, image_close: int, question: Sequence[int]
) -> Query:
    """The tail with a copy of the question in it, behind the `image_close` tokens that end the last image."""
    behind = tail_start + image_close
    rows = np.concatenate([ids[tail_start:behind], np.asarray(question, dtype=np.int64), ids[behind:]])
    return scratch_query(rows, len(ids), int(positions[0, tail_start]))


def scratch_query(rows: Ints, length: int, position: int) -> Query:
    """A query in scratch slots behind a prompt of `length` slots, its positions counted on from `position`."""
    numbered = np.arange(position, position + len(rows))
    return Query(
        rows, np.arange(length, length + len(rows)), np.broadcast_to(numbered, (3, len(rows))).copy()
    )


def exact_spans(ids: Ints, spans: Sequence[ImageSpan], prefix: Sequence[int]) -> tuple[ImageSpan, ...]:
    """The first image is exact where the canonical prefix is all that stands before it."""
    if (
        not spans
        or spans[0].start != len(prefix)
        or not np.array_equal(ids[: len(prefix)], np.asarray(prefix))
    ):
        return ()
    return (spans[0],)
