"""Training prompts: one context (system prompt and pages) shared by several questions, with supervision.

The questions of a prompt are laid side by side as segments. Each segment continues the context at the same
position and sees the context and itself only, so every question is computed exactly as if it stood alone, while
the pages, by far the most tokens, are computed once.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from transformers import PreTrainedTokenizerFast

from demo.pages import DIGITS, GRID, INKS, KEYS, TINTS, Page, Place, resolve
from demo.questions import DEFAULT_SYSTEM, ORDINALS, VALUES, Question, Reading, read
from training.page_reader.files import PAGE_TOKENS

TAIL: Final = "<|im_end|>\n<|im_start|>assistant\n"
NEXT_TURN: Final = "<|im_end|>\n<|im_start|>user\n"
_TINTS: Final = list(TINTS)
_INKS: Final = list(INKS)
LOOKS: Final = ("table", "source", "mark", "previous", "key", "reference", "asked")
DENSE_WEIGHT: Final = (
    0.3  # of the loss of a question token, against 1 for a token that really predicts the answer
)


class Codec:
    """Token ids of texts (cached) and of the words that supervision refers to."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.encode = lru_cache(maxsize=1 << 16)(self._encode)
        self.im_end, self.vision_start, self.vision_end, self.image_pad = (
            self._single(f"<|{name}|>") for name in ("im_end", "vision_start", "vision_end", "image_pad")
        )
        self.keys = [self._single(f" {key}") for key in KEYS]
        self.values = [self._single(value) for value in VALUES]
        self.references = [self._single(f" {word}") for word in (*TINTS, *ORDINALS)]
        self.key_of = {token: i for i, token in enumerate(self.keys)}
        self.key_of |= {self._single(key): i for i, key in enumerate(KEYS)}
        self.reference_of = {token: i for i, token in enumerate(self.references)}

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _single(self, text: str) -> int:
        (token,) = self.encode(text)
        return token


@dataclass(slots=True)
class Notes:
    """Supervision of one prompt, as rows of its token sequence.

    answers: (row, target token, weight, unit), where a unit is an answer that is right when all its rows of weight
    1 are. questions: (row, asked key or -1, page reference) for rows that must know what is asked. cells: (row, key,
    value read, tint, page number, 1 if written on this page, previous key on the page or 12). marks: (row, page
    number) of vision-start tokens. ends: (row, tint, page number, last key) of vision-end tokens. looks: for each
    kind of look-up, (row, row looked at).
    """

    answers: list[tuple[int, int, float, int]] = field(default_factory=list)
    questions: list[tuple[int, int, int]] = field(default_factory=list)
    cells: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    ends: list[tuple[int, int, int, int]] = field(default_factory=list)
    looks: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {name: [] for name in LOOKS})
    units: list[str] = field(default_factory=list)


class Prompt:
    """One prompt under construction: tokens, segments, (time, height, width) positions and notes."""

    def __init__(self, codec: Codec, pages: tuple[Page, ...], system: str | None, reading: Reading) -> None:
        self.codec, self.pages, self.reading = codec, pages, reading
        self.ids: list[int] = []
        self.segments: list[int] = []
        self.positions: list[tuple[int, int, int]] = []
        self.notes = Notes()
        self.first_rows: list[int] = []  # first visual row of each page
        self._clock = self._fork = self._segment = 0
        self._text(f"<|im_start|>system\n{system or DEFAULT_SYSTEM}<|im_end|>\n<|im_start|>user\n")
        self._table_rows = self._find_tables()

    def _find_tables(self) -> dict[str, int]:
        """For every ink that the system prompt names, the row of the word that names it."""
        rows = {}
        for ink, table in self.reading.items():
            (token,) = self.codec.encode(f" {ink}={table}")
            rows[ink] = self.ids.index(token)
        return rows

    def _text(self, text: str) -> int:
        """Append text; returns the row of its first token."""
        tokens, first = self.codec.encode(text), len(self.ids)
        self.ids += tokens
        self.segments += [self._segment] * len(tokens)
        self.positions += [(i, i, i) for i in range(self._clock, self._clock + len(tokens))]
        self._clock += len(tokens)
        return first

    def add_pages(self) -> None:
        """Append all pages and note what their tokens must know."""
        for number, page in enumerate(self.pages):
            tint = _TINTS.index(page.tint)
            mark = self._text("<|vision_start|>")
            first, start = len(self.ids), self._clock
            self.ids += [self.codec.image_pad] * PAGE_TOKENS
            self.segments += [self._segment] * PAGE_TOKENS
            self.positions += [(start, start + i, start + j) for i in range(GRID) for j in range(GRID)]
            self._clock += GRID
            end = self._text("<|vision_end|>")
            self.first_rows.append(first)
            self.notes.marks.append((mark, number))
            last = self._note_cells(number, tint, mark)
            self.notes.ends.append((end, tint, number, last))
            self.notes.looks["mark"].append((end, mark))
            if page.cells:
                self.notes.looks["previous"].append((end, self._row(Place(number, page.cells[-1].position))))
        self._fork = self._clock

    def _note_cells(self, number: int, tint: int, mark: int) -> int:
        """Note the cells of a page; returns the last key on it."""
        looks, previous, previous_row = self.notes.looks, len(KEYS), -1
        for cell in self.pages[number].cells:
            row = self._row(Place(number, cell.position))
            source, written = resolve(self.pages, number, cell.key)
            value = VALUES.index(read(written, self.reading))
            plain = int(cell.same_as is None)
            key = KEYS.index(cell.key)
            self.notes.cells.append((row, key, value, tint, number, plain, previous))
            looks["mark"].append((row, mark))
            if previous_row >= 0:
                looks["previous"].append((row, previous_row))
            previous, previous_row = key, row
            if not plain:
                looks["source"].append((row, self._row(source)))
            elif cell.ink in self._table_rows:
                looks["table"].append((row, self._table_rows[cell.ink]))
        return previous

    def _row(self, place: Place) -> int:
        return self.first_rows[place.page] + place.position

    def add_question(self, kind: str, question: Question, *, full: bool) -> None:
        """Append one question as a segment of its own; with `full`, its whole answer, else its first word."""
        self._open_segment()
        start = self._text(question.text)
        tail = self._text(TAIL)
        self._note_turn(kind, question, start, tail, full=full)

    def add_dialogue(self, kind: str, question: Question, follow_up: Question) -> None:
        """Append a dialogue of two turns as a segment of its own, both answers in full."""
        self._open_segment()
        start = self._text(question.text)
        self._note_turn(kind, question, start, self._text(TAIL), full=True)
        self._text(NEXT_TURN.removeprefix("<|im_end|>"))
        self._text(follow_up.text)
        # The follow-up does not name the page, so its reference is sought from the first turn on.
        self._note_turn(kind, follow_up, start, self._text(TAIL), full=True)

    def add_question_before_pages(self, kind: str, question: Question) -> None:
        """Append the question, then the pages, then the whole answer."""
        start = self._text(question.text)
        self.add_pages()
        self._open_segment()
        self._note_turn(kind, question, start, self._text(TAIL), full=True)

    def _open_segment(self) -> None:
        self._segment += 1
        self._clock = self._fork

    def _note_turn(self, kind: str, question: Question, start: int, tail: int, *, full: bool) -> None:
        """Note the question whose text starts at row `start` and whose template tail starts at row `tail`."""
        is_list = kind == "list"
        key_row = -1 if is_list else self._last(self.codec.key_of, start, tail)
        reference_row = self._last(self.codec.reference_of, start, tail)
        known = max(key_row, reference_row)
        # With the question before the pages, only the tail can look anything up.
        rows = range(known if self.segments[known] else tail, len(self.ids))
        first = self.codec.encode(question.answer)[0]
        unit = len(self.notes.units)
        self.notes.units.append(kind)
        for row in rows:
            weight = 1.0 if row == rows[-1] else DENSE_WEIGHT
            self.notes.answers.append((row, first, weight, unit))
            self._note_knowledge(row, key_row, reference_row)
            self.notes.looks["asked"].append((row, self._row(question.asked)))
        if full:
            answer = self._text(f"{question.answer}<|im_end|>")
            for row in range(answer, len(self.ids) - 1):
                self.notes.answers.append((row, self.ids[row + 1], 1.0, unit))
            if is_list:
                self._note_list(question.asked.page, answer, reference_row)

    def _note_knowledge(self, row: int, key_row: int, reference_row: int) -> None:
        """The token at `row` must know the key and the page that the two other tokens name."""
        key = -1 if key_row < 0 else self.codec.key_of[self.ids[key_row]]
        self.notes.questions.append((row, key, self.codec.reference_of[self.ids[reference_row]]))
        if key_row >= 0:
            self.notes.looks["key"].append((row, key_row))
        self.notes.looks["reference"].append((row, reference_row))

    def _note_list(self, page: int, answer: int, reference_row: int) -> None:
        """A list runs key, value, comma: the key looks its own cell up, the value and the comma the next one."""
        cells = self.pages[page].cells
        places = [self._row(Place(page, cell.position)) for cell in cells]
        places.append(self.first_rows[page] + PAGE_TOKENS)  # vision end: nothing more on this page
        for i in range(len(cells)):
            key_row = answer + 3 * i
            for row, place in ((key_row, i), (key_row + 1, i + 1), (key_row + 2, i + 1)):
                self._note_knowledge(row, key_row, reference_row)
                self.notes.looks["asked"].append((row, places[place]))

    def _last(self, tokens: dict[int, int], start: int, stop: int) -> int:
        """Last row in [start, stop) that holds one of the tokens."""
        return next(row for row in range(stop - 1, start - 1, -1) if self.ids[row] in tokens)


def ocr_targets(pages: list[Page]) -> dict[str, np.ndarray]:
    """What is drawn in each cell, [len(pages) * 36] per property; one class more for blank or not drawn."""
    shape = (len(pages), PAGE_TOKENS)
    keys = np.full(shape, len(KEYS))
    values = np.full(shape, DIGITS + 1)
    inks = np.full(shape, len(INKS))
    blocks = np.full(shape, len(TINTS))
    tints = np.repeat([[_TINTS.index(page.tint)] for page in pages], PAGE_TOKENS, axis=1)
    for i, page in enumerate(pages):
        for cell in page.cells:
            keys[i, cell.position] = KEYS.index(cell.key)
            values[i, cell.position] = DIGITS if cell.same_as else cell.digit
            if cell.same_as:
                blocks[i, cell.position] = _TINTS.index(cell.same_as)
            else:
                inks[i, cell.position] = _INKS.index(cell.ink)
    named = {"key": keys, "value": values, "ink": inks, "block": blocks, "tint": tints}
    return {name: array.reshape(-1) for name, array in named.items()}
