"""What the public sets are cut, judged and remembered by, without a model."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eval.published
from eval.datasets.base import Sample, Score
from eval.datasets.known import DATASETS
from eval.published import ERRORS, first_questions, headline_interval, run_set
from eval.trial import Arm
from tests.eval.test_datasets import png, write_table


def write_mmbench(folder: Path) -> None:
    picture = base64.b64encode(png()).decode()
    row = {"question": "Which?", "A": "red", "B": "blue", "answer": "A", "category": "color"}
    rows = [
        {"index": index, "image": picture, **row} for index in ("7", "9", "1000009", "1000007", "2000007")
    ]
    write_table(folder / "MMBench_DEV_EN_V11.tsv", rows)


def test_a_cut_set_keeps_rotated_copies_together(tmp_path: Path) -> None:
    write_mmbench(tmp_path)
    dataset = DATASETS["mmbench"].open(tmp_path)
    assert [s.id for s in first_questions(dataset, 1)] == ["7", "1000007", "2000007"]
    assert [s.id for s in first_questions(dataset, None)] == ["7", "9", "1000009", "1000007", "2000007"]
    # One question of two right, whichever copies are: blocks of questions leave out all copies of one.
    answered = [(s, "A" if s.id.endswith("7") else "B") for s in dataset.samples()]
    assert headline_interval(dataset, answered) == [50.0, 50 - ERRORS * 50, 50 + ERRORS * 50]
    assert headline_interval(dataset, answered[:1]) is None


class Counted:
    """A set whose answers are 0 or 1; its headline is their share or their number."""

    name, max_tokens = "counted", 1

    def __init__(self, headline: str) -> None:
        self.headline = headline

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        total = sum(float(output) for _, output in answered)
        return {"share": total / len(answered), "number": total}


def test_intervals_are_those_of_means_and_sums() -> None:
    said = np.random.default_rng(3).random(1000) < 0.3
    answered = [(Sample(str(i), (), {}), str(int(one))) for i, one in enumerate(said)]
    for headline, error in (("share", said.std() / np.sqrt(1000)), ("number", said.std() * np.sqrt(1000))):
        found = headline_interval(Counted(headline), answered)  # type: ignore[arg-type]
        assert found is not None
        value, low, high = found
        assert value - low == pytest.approx(high - value, rel=1e-3)
        assert high - value == pytest.approx(ERRORS * error, rel=0.25)


class SaysYes:
    """In the place of a loaded model."""

    def __init__(self) -> None:
        self.asked = 0

    def answer(self, *prompt: Any) -> str:
        self.asked += 1
        return "Yes"


def test_recordings_are_of_one_model_and_one_set_of_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval.published, "WORK", tmp_path / "work")
    monkeypatch.setattr(eval.published, "ARMS", (Arm("conduit", "conduit"),))
    picture = base64.b64encode(png()).decode()
    for folder, answer in (("a", "Yes"), ("b", "No")):
        (tmp_path / folder).mkdir()
        rows = [
            {
                "index": str(i),
                "image": picture,
                "question": f"{folder}?",
                "answer": answer,
                "category": "random",
            }
            for i in range(2)
        ]
        write_table(tmp_path / folder / "POPE.tsv", rows)
    model: Any = SaysYes()
    accuracy = {}
    for folder in ("a", "b", "a"):
        table = run_set(model, "pope", tmp_path / folder, None, {"model": "m"})
        accuracy[folder] = table["cells"]["full.r100"]["accuracy"]
        assert table["n"] == 2 and table["intervals"].keys() == table["cells"].keys()
    cells = 2 + len(eval.published.RATIOS)
    # Another folder's prompts are asked; going back to the first asks nothing again.
    assert accuracy == {"a": 100.0, "b": 0.0} and model.asked == 2 * 2 * cells
    run_set(model, "pope", tmp_path / "a", None, {"model": "another"})
    assert model.asked == 3 * 2 * cells
    run_set(model, "pope", tmp_path / "a", 1, {"model": "m"})
    assert model.asked == 3 * 2 * cells + cells
