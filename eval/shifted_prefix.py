"""Accuracy of the shipped model behind shifted prefixes, all policies, all budgets: `python -m eval.shifted_prefix`.

Seven sets of questions about 2 to 8 synthetic pages; the same prompts for every policy. Stopped, it goes on where it
was. Writes `results/shifted_prefix.json`; `ratios` are shares of full prefill's accuracy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import NotMeasured, write_result
from engine.heap import keep_large_blocks_apart
from engine.load import weights_fingerprint
from eval.arms import ARMS, RATIOS, described
from eval.page_prompts import SHIPPED, PageReader, draw
from eval.recording import WORK, Recording
from eval.sweep import Table, cells, columns, measure
from eval.trial import Arm, Trial

SETS = ("single_hop", "two_hop", "page_order", "distractor", "reordered", "system", "question_first")
SEED = 2026
PROMPTS = 1000


class PageSweep:
    """Measures prompts of one set. The foreign question of prompt i is that of prompt i + 1."""

    def __init__(self, reader: PageReader, kind: str, arms: Sequence[Arm], ratios: Sequence[float]) -> None:
        self._reader, self._kind, self._wanted = reader, kind, cells(arms, ratios)

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        example, following = draw(self._kind, range(number, number + 2), SEED)
        prompt = self._reader.prompt(example, following.question.text)
        trial = Trial(self._reader.family, self._reader.pool, prompt)
        try:
            right = self._reader.first_token(example.answer)
            return measure(trial, right, self._wanted, missing, number)
        finally:
            trial.close()


def sweep_set(
    reader: PageReader, kind: str, prompts: int, arms: Sequence[Arm], ratios: Sequence[float]
) -> Table:
    """Arms at ratios on one set; what an earlier run measured is taken over."""
    sweep = PageSweep(reader, kind, arms, ratios)
    recording = Recording(WORK / "shifted_prefix" / f"{kind}.jsonl", drawn_by())
    return Table.of(recording.complete(range(prompts), columns(arms, ratios), sweep.row, kind))


def written(script: str, tables: Mapping[str, Table], arms: Sequence[Arm], ratios: Sequence[float]) -> Path:
    """Write the result file of page sets by name. Raises `NotMeasured` where r = 1 was not full prefill."""
    shares: dict[str, float] = {}
    for kind, table in tables.items():
        table.check_ends()
        shares |= table.shares(kind)
    figures = {kind: table.figures("conduit") for kind, table in tables.items()}
    prompts = {kind: len(table.full) for kind, table in tables.items()}
    return write_result(
        script, drawn_by() | described(arms, ratios) | {"prompts_per_set": prompts}, shares, figures
    )


def drawn_by() -> dict[str, Any]:
    """What rows of a recording must have in common."""
    return {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "pages": "2-8"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts per set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--measure-only", action="store_true", help="fill the recording, write no result")
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    reader = PageReader.load()
    tables = {kind: sweep_set(reader, kind, options.prompts, ARMS, RATIOS) for kind in options.sets}
    if options.measure_only:
        return 0
    try:
        print(written(__file__, tables, ARMS, RATIOS))
    except NotMeasured as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
