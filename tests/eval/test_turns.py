"""What reused text costs: edited conversations, rows of single prompts, and what many say together."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.result import NotMeasured
from engine.messages import ImagePart
from eval.page_prompts import PageReader
from eval.turns import CELLS, COLUMNS, NAMES, REUSED, Answers, draw, figures_of


@pytest.mark.parametrize(("layout", "edit"), CELLS)
def test_an_edited_conversation_says_the_same_of_other_pages(layout: str, edit: str) -> None:
    for number in range(5):
        edited = draw(layout, edit, number)
        before, after = edited.before, edited.after
        assert edited == draw(layout, edit, number)
        assert (before.turns, before.question) == (after.turns, after.question)
        assert (before.system != after.system) == (edit == "system")
        pages = {"drop": 1, "insert": -1}.get(edit, 0)
        assert len(before.pages) - len(after.pages) == pages
        assert (before.pages == after.pages) == (edit == "system")
        assert set(before.pages) <= set(after.pages) or set(after.pages) <= set(before.pages)
        for conversation in (before, after):
            parts = [part for message in conversation.messages() for part in message.parts]
            images = [part.index for part in parts if isinstance(part, ImagePart)]
            assert images == list(range(len(conversation.pages)))


def test_a_row_has_every_cell_and_there_is_text_to_reuse() -> None:
    row = Answers(PageReader.load()).row(CELLS.index(("pages first", "system")), NAMES)
    assert set(row) == set(COLUMNS) and row[REUSED] > 8
    assert {row[name] for name in NAMES} <= {0, 1}


def test_figures_count_what_full_prefill_answers_and_compare_pairs() -> None:
    layout, edit = CELLS[0]
    rows: dict[int, dict[str, Any]] = {
        number: {"layout": layout, "edit": edit, REUSED: 20, **dict.fromkeys(NAMES, 1)} for number in range(4)
    }
    rows[0]["full.r100"] = 0
    rows[1][REUSED] = 0
    rows[2]["conduit_turns.r10"] = 0
    found = figures_of(rows)
    assert (found["n"], found["counted"], found["with_text_to_reuse"]) == (4, 3, 2)
    assert found["conduit.r10"]["accuracy"][0] == 1.0
    assert found["conduit_turns.r10"]["accuracy"][0] == 0.5
    assert found["conduit_turns.r10"]["minus_computed"][0] == -0.5
    assert found["conduit_turns.r10"]["by_cell"] == {f"{layout}, {edit}": [2, 0.5]}
    with pytest.raises(NotMeasured):
        figures_of({0: rows[0], 1: rows[1]})
