"""A run that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from eval.recording import Recording


class Measuring:
    def __init__(self, stop_at: int | None = None) -> None:
        self.asked: list[tuple[int, list[str]]] = []
        self._stop_at = stop_at

    def __call__(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        if number == self._stop_at:
            raise KeyboardInterrupt
        self.asked.append((number, list(missing)))
        return {name: f"{name}{number}" for name in missing}


def test_goes_on_behind_the_last_row(tmp_path: Path) -> None:
    file = tmp_path / "a" / "set.jsonl"
    with pytest.raises(KeyboardInterrupt):
        Recording(file, {"seed": 1}).complete(range(5), ["x"], Measuring(stop_at=3), "set")
    file.write_text(file.read_text() + '{"prompt": 3, "x": "cut of')  # killed while writing
    again = Measuring()
    rows = Recording(file, {"seed": 1}).complete(range(5), ["x"], again, "set")
    assert again.asked == [(3, ["x"]), (4, ["x"])]
    assert rows == {n: {"x": f"x{n}"} for n in range(5)}
    assert Recording(file, {"seed": 1}).complete(range(5), ["x"], Measuring(stop_at=0), "set") == rows


def test_only_missing_columns_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    Recording(file, {}).complete(range(2), ["x", "y"], Measuring(), "set")
    again = Measuring()
    rows = Recording(file, {}).complete(range(3), ["y", "z"], again, "set")
    assert again.asked == [(0, ["z"]), (1, ["z"]), (2, ["y", "z"])]
    assert rows[1] == {"y": "y1", "z": "z1"}


def test_rows_of_other_settings_are_thrown_away(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    Recording(file, {"weights": "old"}).complete(range(2), ["x"], Measuring(), "set")
    assert Recording(file, {"weights": "new"}).rows() == {}
