"""What a run has measured so far, prompt by prompt, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

WORK = Path(__file__).parent / ".work"

# Measures those of the named columns of a prompt that are missing.
Measure = Callable[[int, Collection[str]], Mapping[str, Any]]


class Recording:
    """JSON lines behind a line with the settings; lines of one prompt add up to its row. Rows of other settings (other
    weights, other prompts) are thrown away; columns may be added later, for instance another policy's."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._head = json.dumps({"settings": settings}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._continues():
            path.write_text(self._head + "\n")

    def rows(self) -> dict[int, dict[str, Any]]:
        """Rows by prompt number. A last line that was cut off in writing is not one."""
        found: dict[int, dict[str, Any]] = {}
        for line in self._path.read_text().splitlines()[1:]:
            try:
                part = json.loads(line)
            except json.JSONDecodeError:
                continue
            found.setdefault(int(part.pop("prompt")), {}).update(part)
        return found

    def complete(
        self, prompts: range, columns: Collection[str], measure: Measure, title: str
    ) -> dict[int, dict[str, Any]]:
        """Measure what the rows of `prompts` lack of `columns`; returns those rows, with these columns."""
        done = self.rows()
        missing = {n: [c for c in columns if c not in done.get(n, {})] for n in prompts}
        left = [number for number in prompts if missing[number]]
        with self._path.open("a") as file:
            if not self._path.read_bytes().endswith(b"\n"):
                file.write("\n")
            bar = tqdm(left, desc=title, initial=len(prompts) - len(left), total=len(prompts), mininterval=5)
            for number in bar:
                part = measure(number, missing[number])
                file.write(json.dumps({"prompt": number, **part}) + "\n")
                file.flush()
                done.setdefault(number, {}).update(part)
        return {number: {c: done[number][c] for c in columns} for number in prompts}

    def _continues(self) -> bool:
        if not self._path.exists():
            return False
        with self._path.open() as lines:
            return lines.readline().rstrip("\n") == self._head
