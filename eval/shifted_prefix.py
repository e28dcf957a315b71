"""Accuracy of the shipped model behind shifted prefixes, all policies, all budgets: `python -m eval.shifted_prefix`.

Seven sets of questions about 2 to 8 synthetic pages; the same prompts for every policy. Stopped, it goes on where it
was. Writes `results/shifted_prefix.json`; `ratios` are shares of full prefill's accuracy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.result import write_result
from engine.serving.heap import keep_large_blocks_apart
from engine.serving.load import weights_fingerprint
from eval.arms import ARMS, RATIOS, described
from eval.page_prompts import SHIPPED, PageReader, draw
from eval.recording import WORK, Recording
from eval.status import exit_status
from eval.sweep import Draw, Sweep, Table, columns
from eval.trial import Arm, Prompt

SETS = ("single_hop", "two_hop", "page_order", "distractor", "reordered", "system", "question_first")
SEED = 2026
PROMPTS = 1000


def page_questions(reader: PageReader, kind: str) -> Draw:
    """Questions of one set. The foreign question of prompt i is that of prompt i + 1."""

    def asked(number: int) -> tuple[Prompt, int]:
        example, following = draw(kind, range(number, number + 2), SEED)
        return reader.prompt(example, following.question.text), reader.first_token(example.answer)

    return asked


def sweep_set(
    reader: PageReader, kind: str, prompts: int, arms: Sequence[Arm], ratios: Sequence[float]
) -> Table:
    """Arms at ratios on one set; what an earlier run measured is taken over."""
    sweep = Sweep(reader.family, reader.pool, page_questions(reader, kind), arms, ratios)
    recording = Recording(WORK / "shifted_prefix" / f"{kind}.jsonl", drawn_by())
    return Table.of(recording.complete(range(prompts), columns(arms, ratios), sweep.row, kind))


def drawn_by() -> dict[str, Any]:
    """What rows of a recording must have in common."""
    return {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "pages": "2-8"}


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
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
        return
    shares: dict[str, float] = {}
    for kind, table in tables.items():
        table.check_ends()
        shares |= table.shares(kind)
    figures = {kind: table.figures("conduit") for kind, table in tables.items()}
    prompts = {kind: len(table.full) for kind, table in tables.items()}
    settings = drawn_by() | described(ARMS, RATIOS) | {"prompts_per_set": prompts}
    print(write_result(__file__, settings, shares, figures))


if __name__ == "__main__":
    raise SystemExit(main())
