"""Whole answers with corrections and refining: rows of single prompts, and what many say together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.result import NotMeasured
from engine.passes.forward import Work
from engine.passes.refine import Refiner, first_stale
from engine.passes.refresh import Prefill
from engine.policies.known import make_policy
from eval.correction import BLIND, NAMES, TRIED, Answers, figures_of
from eval.forced import would_say, would_say_refining
from eval.page_prompts import PageReader, draw
from eval.report.page import page
from tests.eval.test_report import HEAD

EVERYTHING = 10_000


@pytest.fixture(scope="module")
def reader() -> PageReader:
    return PageReader.load()


def test_a_row_has_every_cell(reader: PageReader) -> None:
    row = Answers(reader).row(5, ("kind", BLIND, *NAMES))
    assert set(row) == {"kind", BLIND, *NAMES} and row["full.r100"] == 1 and row[BLIND] == 0
    assert {value for name, value in row.items() if name != "kind"} <= {0, 1}
    some = Answers(reader).row(5, ("reuse.r0",))
    assert set(some) == {"kind", BLIND, "reuse.r0"} and some["reuse.r0"] == row["reuse.r0"]


@torch.inference_mode()
def test_everything_refined_behind_a_right_first_token_is_full_prefill(reader: PageReader) -> None:
    """`dialogue` and `list` at r = 0: wherever the first token is right, the answer is full prefill's."""
    mended = 0
    for kind in ("dialogue", "list"):
        for example in draw(kind, range(4), 7):
            prompt = reader.prompt(example, example.question.text)
            answer, layout = reader.answer_tokens(example.answer), prompt.layout
            behind = (layout.length, layout.next_position, answer)
            prefill = Prefill(
                reader.family, reader.pool.take(prompt.slots + 64), layout, prompt.features, Work()
            )
            found = prefill.reuse(prompt.entries, make_policy("reuse", {}), 0.0)
            stale = would_say(reader.family, prefill.kv, found.logits, *behind)
            refiner = Refiner(reader.family, prefill.prompt_rows, first_stale(layout, found.exact), Work())
            swept = would_say_refining(reader.family, prefill.kv, found.logits, *behind, refiner, EVERYTHING)
            full = would_say(reader.family, prefill.kv, prefill.full().logits, *behind)
            reader.pool.give_back(prefill.kv)
            assert swept == (full and int(found.logits.argmax()) == answer[0])
            mended += swept and not stale
    assert mended > 0


@torch.inference_mode()
def test_nothing_refined_is_the_plain_answer(reader: PageReader) -> None:
    for example in draw("page_order", range(3), 7):
        prompt = reader.prompt(example, example.question.text)
        answer, layout = reader.answer_tokens(example.answer), prompt.layout
        behind = (layout.length, layout.next_position, answer)
        prefill = Prefill(reader.family, reader.pool.take(prompt.slots + 64), layout, prompt.features, Work())
        found = prefill.reuse(prompt.entries, make_policy("conduit", {}), 0.1)
        refiner = Refiner(reader.family, prefill.prompt_rows, first_stale(layout, found.exact), Work())
        token_by_token = would_say_refining(reader.family, prefill.kv, found.logits, *behind, refiner, 0)
        assert token_by_token == would_say(reader.family, prefill.kv, found.logits, *behind)
        reader.pool.give_back(prefill.kv)


def rows_of(right: dict[str, list[int]], blind: list[int]) -> dict[int, dict[str, Any]]:
    rows = {}
    for number, guessed in enumerate(blind):
        row: dict[str, Any] = {"kind": "list", BLIND: guessed, "full.r100": 1}
        row |= {tried.name: 0 for tried in TRIED if tried.name != "full.r100"}
        rows[number] = row | {name: values[number] for name, values in right.items()}
    return rows


def test_only_answers_that_need_the_pages_count() -> None:
    right = {
        "full.r100": [1, 1, 1, 1, 0, 1],
        "reuse.r0": [1, 0, 0, 0, 1, 1],
        "impact.r10": [1, 0, 1, 0, 1, 1],
        "impact_shift.r10": [1, 1, 1, 0, 0, 1],
    }
    found = figures_of(rows_of(right, blind=[0, 0, 0, 0, 0, 1]))
    assert (found["n"], found["counted"], found["by_kind_counted"]["list"]) == (6, 4, 4)
    assert [found[name]["accuracy"][0] for name in right] == [1, 0.25, 0.5, 0.75]
    assert found["impact_shift.r10"]["recovered"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["impact_shift.r10"]["minus_impact.r10"][0] == 0.25
    assert found["impact.r10"]["by_kind"] == {"list": 0.5}


def test_nothing_to_count_is_not_measured() -> None:
    with pytest.raises(NotMeasured):
        figures_of(rows_of({}, blind=[1, 1]))


def test_the_report_opens_with_one_table(tmp_path: Path) -> None:
    right = {"full.r100": [1, 1, 1, 1], "impact.r10": [1, 0, 1, 0], "impact_shift.r10": [1, 1, 1, 0]}
    found = HEAD | {"figures": figures_of(rows_of(right, blind=[0, 0, 0, 0])), "settings": {"refine": 32}}
    text = page({"correction": found}, tmp_path)
    assert text.index("## In one table") < text.index("## The shipped model, whole answers")
    assert "| full prefill | 100.0 ±49.0 | 100.0 |  | 100.0 |" in text
    assert "| `impact`, 10 %, shift | 75.0 ±44.9 | 75.0 | +25.0 [+0.0, +75.0] | 75.0 |" in text
    assert "| `impact`, 10 % | 50.0 ±35.0 | 50.0 | +50.0 [+0.0, +100.0] | 50.0 |" in text
    assert "counted are the 4 that" in text and "refine computes 32 prompt rows" in text
