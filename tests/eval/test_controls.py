"""The controls: what is drawn by lot, and what a row of the evaluation holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import eval.controls
from demo.pages import CELL_PX, GRID, TINTS, render
from engine.policies.base import EMPTY, Probe
from eval.arms import cell
from eval.controls import ARMS, ELSEWHERE, OWN, RANDOM, RATIOS, WRONG, Controls, by_lot, filled_slots, looked
from eval.page_prompts import PageReader, draw
from eval.shifted_prefix import SEED, page_questions
from eval.sweep import Sweep, columns

# How far the grain of a page takes a pixel from the ground, in 8-bit levels.
GRAIN = 18


@pytest.fixture(scope="module")
def reader() -> PageReader:
    return PageReader.load()


def test_filled_cells_are_drawn_first_and_by_lot() -> None:
    filled = np.array([False, True, False, True, True, False])
    probe = Probe(EMPTY, EMPTY, torch.zeros(6, dtype=torch.long))
    drawn = [by_lot(number, filled).select(probe, 2).tolist() for number in range(40)]
    assert {slot for pair in drawn for slot in pair} == {1, 3, 4}
    assert {tuple(pair) for pair in drawn} == {(1, 3), (1, 4), (3, 4)}
    rest = [by_lot(number, filled).select(probe, 4).tolist() for number in range(40)]
    assert all({1, 3, 4} < set(four) for four in rest) and len({tuple(four) for four in rest}) == 3
    assert by_lot(5, filled) == by_lot(5, filled)


def test_filled_slots_are_where_the_ink_is(reader: PageReader) -> None:
    (example,) = draw("two_hop", range(3, 4), SEED)
    layout = reader.prompt(example, example.question.text).layout
    inked = set()
    for span in layout.spans:
        page = example.pages[span.image]
        # What is farther from the ground than the page's grain is ink.
        far = np.abs(render(page).astype(int) - TINTS[page.tint]).max(axis=2) > GRAIN
        by_cell = far.reshape(GRID, CELL_PX, GRID, CELL_PX).any(axis=(1, 3)).ravel()
        inked |= {span.start + int(position) for position in np.flatnonzero(by_cell)}
    assert set(filled_slots(example, layout).tolist()) == inked


def test_a_run_of_two_prompts(
    reader: PageReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(eval.controls, "WORK", tmp_path)
    monkeypatch.setattr(eval.controls.PageReader, "load", lambda: reader)
    monkeypatch.setattr(eval.controls, "write_result", lambda *found: written.append(found) or "written")
    command = ["--prompts", "2", "--sets", "two_hop"]
    assert eval.controls.main([*command, "--measure-only"]) == 0 and not written
    # A second run measures nothing anew.
    monkeypatch.setattr(eval.controls.Controls, "row", None)
    assert eval.controls.main(command) == 0
    (_, settings, ratios, figures), found = written[0], written[0][3]["two_hop"]
    assert settings["prompts_per_set"] == 2 and set(figures) == {"two_hop"} and found["n"] == 2
    for arm in ARMS:
        assert {f"two_hop.{cell(arm.name, r)}" for r in RATIOS} <= ratios.keys()
    assert found["conduit.r5"]["overlap"] == 1.0 and found["conduit.r5"]["accuracy_minus_random_ink"]
    assert found["random_ink.r2"]["ink"] == 1.0 > found["random.r2"]["ink"]
    assert 0 < found["filled"] < 0.5


def test_the_same_answers_as_the_sweep_gives(reader: PageReader) -> None:
    """What `eval.shifted_prefix` measures under the same names; and the unrelated question is another."""
    controls = Controls(reader, "page_order")
    questions = page_questions(reader, "page_order")
    sweep = Sweep(reader.family, reader.pool, questions, (OWN, WRONG, RANDOM), RATIOS)
    wanted = columns((OWN, WRONG, RANDOM), RATIOS)
    row = controls.row(1, wanted)
    for name, value in sweep.row(1, wanted).items():
        assert row[name] == pytest.approx(value, abs=1e-5)
    assert any(row[looked(WRONG, r)] != row[looked(ELSEWHERE, r)] for r in RATIOS)
