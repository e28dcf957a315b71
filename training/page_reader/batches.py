"""Batches of training prompts as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Final

import numpy as np
import torch
from torch import Tensor

from demo.pages import PAGE_PX, Page, draw_pages, render
from demo.questions import (
    DEFAULT_SYSTEM,
    Reading,
    ask_follow_up,
    ask_list,
    ask_value,
    draw_plain_system,
    draw_reading,
)
from training.page_reader.files import GRID_PATCHES, MERGE, PATCH
from training.page_reader.prompts import Codec, Prompt, ocr_targets

# What a prompt is trained on: `tint` and `order` name the page, `table` is `tint` behind a system prompt with tables,
# `link` asks for a coloured block, `first` puts the question before the pages.
SKILLS: Final = ("tint", "table", "order", "link", "first", "dialogue", "list")
SHORT_SKILLS: Final = ("tint", "order", "link")
_NOISE: Final = 0.08  # share of system prompts that start with words outside the vocabulary
_QUESTION_TOKENS: Final = 14
_LONG_TOKENS: Final = 34


@dataclass(frozen=True, slots=True)
class Mix:
    """What to draw. weights: per skill, relative. questions: short questions for each prompt."""

    pages: tuple[int, ...]
    filled: tuple[int, int]
    links: float
    weights: dict[str, float]
    questions: int = 5
    tables: float = 0.6
    shared_keys: float = 0.6
    tokens: int = 1700  # of a batch, about


@dataclass(frozen=True, slots=True)
class Batch:
    """B prompts of L tokens over M pages in all.

    ids, segments: [B, L] (segment -1 is padding). positions: [3, B, L]. pictures: [M, 96, 96, 3] uint8, in prompt
    order. ocr: [M * 36] per property. The other fields list (prompt, row, ...), see prompts.Notes; `answer_weights`
    goes with `answers`. units: the skill of each unit.
    """

    ids: Tensor
    segments: Tensor
    positions: Tensor
    pictures: Tensor
    ocr: dict[str, Tensor]
    answers: Tensor
    answer_weights: Tensor
    questions: Tensor
    cells: Tensor
    marks: Tensor
    ends: Tensor
    looks: dict[str, Tensor]
    units: list[str]

    def mask(self) -> Tensor:
        """[B, 1, L, L], True where a row may attend: earlier, and in the context or in its own segment."""
        length = self.ids.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        columns = self.segments[:, None, :]
        return (earlier & ((columns == 0) | (columns == self.segments[:, :, None])))[:, None]


def patches(pictures: Tensor) -> Tensor:
    """[M, 96, 96, 3] uint8 -> [M * 144, 384] float patches in the layout of Qwen2VLImageProcessor, mean = std = .5."""
    count = pictures.shape[0]
    scaled = pictures.to(torch.float32).div_(255).sub_(0.5).div_(0.5).permute(0, 3, 1, 2)
    half = GRID_PATCHES // MERGE
    tiles = scaled.reshape(count, 3, half, MERGE, PATCH, half, MERGE, PATCH)
    tiles = tiles.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return tiles.reshape(count * GRID_PATCHES**2, 3 * 2 * PATCH * PATCH)


def draw_batch(rng: np.random.Generator, codec: Codec, mix: Mix) -> Batch:
    """Draw one batch: all its prompts have the same number of pages."""
    count = int(rng.choice(mix.pages))
    early = mix.weights.get("first", 0.0)
    first = rng.random() < early / sum(mix.weights.values())
    extra = _LONG_TOKENS if first else _LONG_TOKENS + mix.questions * _QUESTION_TOKENS
    size = max(4, round(mix.tokens / (18 + 38 * count + extra)))
    draw = _draw_question_first if first else _draw_prompt
    return collate([draw(rng, codec, mix, count) for _ in range(size)])


def _draw_context(rng: np.random.Generator, codec: Codec, mix: Mix, count: int) -> Prompt:
    shared = bool(rng.random() < mix.shared_keys)
    pages = draw_pages(rng, count, filled=mix.filled, shared_keys=shared, links=mix.links * rng.random() * 2)
    reading: Reading = {}
    system: str | None
    if rng.random() < mix.tables:
        system, reading = draw_reading(rng)
    else:
        system = draw_plain_system(rng)
    if rng.random() < _NOISE:
        system = f"{_draw_noise(rng)} {system or DEFAULT_SYSTEM}"
    return Prompt(codec, pages, system, reading)


def _draw_noise(rng: np.random.Generator) -> str:
    """A few words that mean nothing, so that unknown words (read byte by byte) in a system prompt do no harm."""
    words = [rng.choice(list(ascii_letters), rng.integers(1, 6)) for _ in range(rng.integers(1, 4))]
    return " ".join("".join(word.tolist()) for word in words) + "."


def _draw_prompt(rng: np.random.Generator, codec: Codec, mix: Mix, count: int) -> Prompt:
    """Pages first: several short questions, and one long answer (a sentence, a list or a dialogue)."""
    prompt = _draw_context(rng, codec, mix, count)
    prompt.add_pages()
    for _ in range(mix.questions):
        skill, page, key = _draw_short(rng, prompt.pages, mix)
        question = ask_value(rng, prompt.pages, prompt.reading, page, key, by_order=_by_order(rng, skill))
        prompt.add_question(_named(skill, prompt), question, full=False)
    _add_long(rng, prompt, mix)
    return prompt


def _add_long(rng: np.random.Generator, prompt: Prompt, mix: Mix) -> None:
    weights = {"sentence": 0.25, **{name: mix.weights.get(name, 0.0) for name in ("dialogue", "list")}}
    skill, page, key = _draw_short(rng, prompt.pages, mix)
    pages, reading, by_order = prompt.pages, prompt.reading, _by_order(rng, skill)
    form = _choose(rng, weights)
    if form == "list":
        page = int(rng.integers(len(pages)))
        prompt.add_question("list", ask_list(rng, pages, reading, page, by_order=by_order), full=True)
        return
    question = ask_value(rng, pages, reading, page, key, by_order=by_order)
    others = [cell.key for cell in pages[page].cells if cell.key != key]
    if form == "sentence" or not others:
        prompt.add_question(_named(skill, prompt), question, full=True)
        return
    other = others[int(rng.integers(len(others)))]
    follow_up = ask_follow_up(rng, pages, reading, page, other, by_order=by_order)
    prompt.add_dialogue("dialogue", question, follow_up)


def _draw_question_first(rng: np.random.Generator, codec: Codec, mix: Mix, count: int) -> Prompt:
    prompt = _draw_context(rng, codec, mix, count)
    skill, page, key = _draw_short(rng, prompt.pages, mix)
    question = ask_value(rng, prompt.pages, prompt.reading, page, key, by_order=_by_order(rng, skill))
    prompt.add_question_before_pages("first", question)
    return prompt


def _draw_short(rng: np.random.Generator, pages: tuple[Page, ...], mix: Mix) -> tuple[str, int, str]:
    """A skill and the (page, key) to ask for; `link` falls back to `tint` where there is no coloured block."""
    skill = _choose(rng, {name: mix.weights.get(name, 0.0) for name in SHORT_SKILLS})
    every = [(i, cell) for i, page in enumerate(pages) for cell in page.cells]
    wanted = [(i, cell) for i, cell in every if (cell.same_as is not None) == (skill == "link")]
    if not wanted:
        skill, wanted = "tint", every
    page, cell = wanted[int(rng.integers(len(wanted)))]
    return skill, page, cell.key


def _by_order(rng: np.random.Generator, skill: str) -> bool:
    return skill == "order" or (skill == "link" and rng.random() < 0.25)


def _named(skill: str, prompt: Prompt) -> str:
    return "table" if skill == "tint" and prompt.reading else skill


def _choose(rng: np.random.Generator, weights: dict[str, float]) -> str:
    names = list(weights)
    shares = np.array(list(weights.values()))
    return names[int(rng.choice(len(names), p=shares / shares.sum()))]


def collate(prompts: list[Prompt]) -> Batch:
    """Pad prompts with the same number of pages to one length and stack them."""
    # Few different lengths keep the allocator's heap from falling to pieces.
    length = -(-max(len(prompt.ids) for prompt in prompts) // 16) * 16
    size = len(prompts)
    ids = np.zeros((size, length), dtype=np.int64)
    segments = np.full((size, length), -1, dtype=np.int64)
    positions = np.zeros((size, length, 3), dtype=np.int64)
    columns: dict[str, list[tuple[float, ...]]] = {}
    units: list[str] = []
    for i, prompt in enumerate(prompts):
        ids[i, : len(prompt.ids)] = prompt.ids
        segments[i, : len(prompt.ids)] = prompt.segments
        positions[i, : len(prompt.ids)] = prompt.positions
        notes = prompt.notes
        answers = [(row, target, unit + len(units), weight) for row, target, weight, unit in notes.answers]
        named: dict[str, Sequence[tuple[float, ...]]] = {
            "answers": answers,
            "questions": notes.questions,
            "cells": notes.cells,
            "marks": notes.marks,
            "ends": notes.ends,
            **{f"look.{name}": rows for name, rows in notes.looks.items()},
        }
        for name, rows in named.items():
            columns.setdefault(name, []).extend((i, *row) for row in rows)
        units += notes.units
    tables = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in columns.items()}
    pages = [page for prompt in prompts for page in prompt.pages]
    pictures = np.stack([render(page) for page in pages]).reshape(-1, PAGE_PX, PAGE_PX, 3)
    return Batch(
        ids=torch.from_numpy(ids),
        segments=torch.from_numpy(segments),
        positions=torch.from_numpy(positions).permute(2, 0, 1).contiguous(),
        pictures=torch.from_numpy(pictures),
        ocr={name: torch.from_numpy(array) for name, array in ocr_targets(pages).items()},
        answers=tables["answers"][:, :4].long(),
        answer_weights=tables["answers"][:, 4].float(),
        questions=tables["questions"].long(),
        cells=tables["cells"].long(),
        marks=tables["marks"].long(),
        ends=tables["ends"].long(),
        looks={name[5:]: table.long() for name, table in tables.items() if name.startswith("look.")},
        units=units,
    )
