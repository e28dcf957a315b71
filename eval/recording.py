"""What a run has measured so far, prompt by prompt, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

WORK = Path(__file__).parent / ".work"


class Recording:
    """One JSON line per prompt behind a line with the settings. Rows of other settings are thrown away."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._head = json.dumps({"settings": settings}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._continues():
            path.write_text(self._head + "\n")

    def _continues(self) -> bool:
        if not self._path.exists():
            return False
        with self._path.open() as lines:
            return lines.readline().rstrip("\n") == self._head

    def rows(self) -> dict[int, dict[str, Any]]:
        """Rows by prompt number. A last line that was cut off in writing is not one."""
        found = {}
        for line in self._path.read_text().splitlines()[1:]:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[int(row["prompt"])] = row
        return found

    def complete(
        self, prompts: range, measure: Callable[[int], Mapping[str, Any]], title: str
    ) -> dict[int, dict[str, Any]]:
        """Measure the prompts of `prompts` that have no row yet; returns all their rows."""
        done = self.rows()
        left = [number for number in prompts if number not in done]
        with self._path.open("a") as file:
            if left and not self._ends_whole():
                file.write("\n")
            for number in self._shown(left, title, len(prompts)):
                row = {"prompt": number, **measure(number)}
                file.write(json.dumps(row) + "\n")
                file.flush()
                done[number] = row
        return {number: done[number] for number in prompts}

    def _ends_whole(self) -> bool:
        return self._path.read_bytes().endswith(b"\n")

    @staticmethod
    def _shown(left: list[int], title: str, total: int) -> Iterator[int]:
        yield from tqdm(left, desc=title, initial=total - len(left), total=total, mininterval=5)
