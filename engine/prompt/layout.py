"""Where everything of a prompt stands: token ids, image spans, positions, and the rows that ask the question.

Slots are indices into the prompt, in sequence order; every pass of the engine speaks of slots. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidPrompt

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The run of slots that one image's visual tokens take. `image` indexes the request's images."""

    image: int
    start: int
    height: int
    width: int

    @property
    def tokens(self) -> int:
        return self.height * self.width

    @property
    def stop(self) -> int:
        return self.start + self.tokens


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
    """`ids` [slots] (image token where a visual token stands), `positions` [3, slots] (M-RoPE: time, row, column),
    `next_position` is that of the first generated token. `exact` are the spans whose KV under full prefill equals the
    stored entry, because all before them is the canonical prefix."""

    ids: Ints
    spans: tuple[ImageSpan, ...]
    positions: Ints
    next_position: int
    query: Query
    exact: tuple[ImageSpan, ...]

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def visual_tokens(self) -> int:
        return sum(span.tokens for span in self.spans)

    def visual_slots(self) -> Ints:
        return span_slots(self.spans)

    def text_slots(self) -> Ints:
        is_text = np.ones(self.length, dtype=bool)
        is_text[self.visual_slots()] = False
        return np.flatnonzero(is_text)

    def candidates(self) -> Ints:
        """Visual slots that a refresh may choose: all but those of exact spans."""
        return span_slots([span for span in self.spans if span not in self.exact])

    def tail(self) -> Ints:
        """The text run behind the last image (the whole prompt where there is none)."""
        start = self.spans[-1].stop if self.spans else 0
        return np.arange(start, self.length)


def span_slots(spans: Sequence[ImageSpan]) -> Ints:
    if not spans:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.arange(span.start, span.stop) for span in spans])


def positions_of(length: int, spans: Sequence[ImageSpan]) -> tuple[Ints, int]:
    """M-RoPE positions [3, length] and the next free position.

    Text advances all three axes by one. A still image that starts at p holds (p, p + row, p + column) and the text
    behind it goes on at p + max(height, width) (Qwen2.5-VL; transformers `get_rope_index`).
    """
    positions = np.empty((3, length), dtype=np.int64)
    slot = position = 0
    for span in spans:
        text = span.start - slot
        positions[:, slot : span.start] = np.arange(position, position + text)
        position += text
        rows, columns = np.divmod(np.arange(span.tokens), span.width)
        positions[0, span.start : span.stop] = position
        positions[1, span.start : span.stop] = position + rows
        positions[2, span.start : span.stop] = position + columns
        position += max(span.height, span.width)
        slot = span.stop
    positions[:, slot:] = np.arange(position, position + length - slot)
    return positions, position + length - slot


def place(
    ids: Sequence[int], image_token: int, grids: Sequence[tuple[int, int, int]]
) -> tuple[Ints, tuple[ImageSpan, ...]]:
    """Widen each image placeholder of `ids` to its visual tokens. `grids` holds (image, rows, columns) in prompt order.

    Spans come from the grids, never from the length of a run: adjacent images have no token between them.
    """
    widened: list[int] = []
    spans: list[ImageSpan] = []
    remaining = iter(grids)
    for token in ids:
        if token != image_token:
            widened.append(token)
            continue
        image, height, width = next(remaining, (-1, 0, 0))
        if image < 0:
            raise InvalidPrompt("messages: the text spells an image placeholder")
        spans.append(ImageSpan(image, len(widened), height, width))
        widened.extend([image_token] * (height * width))
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
