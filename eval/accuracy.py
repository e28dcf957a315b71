"""Whole greedy answers of the shipped model under reuse, conduit and chance: `python -m eval.accuracy`.

Every kind of question in turn; an answer is right where it is the expected one, word for word. Writes
`results/accuracy.json`; `ratios` are shares of full prefill's accuracy over all kinds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.result import NotMeasured, write_result
from demo.pages import render
from demo.questions import KINDS, Example
from engine.heap import keep_large_blocks_apart
from engine.load import weights_fingerprint
from eval.answering import Answerer
from eval.arms import cell, described
from eval.page_prompts import SHIPPED, conversation, draw
from eval.recording import WORK, Recording
from eval.statistics import mean_interval
from eval.trial import Arm

FULL, REUSE = Arm("full", "full"), Arm("reuse", "reuse")
CONDUIT, RANDOM = Arm("conduit", "conduit"), Arm("random", "random")
RATIOS = (0.05, 0.10, 0.20)
CELLS = ((FULL, 1.0), (REUSE, 0.0), *((a, r) for a in (CONDUIT, RANDOM) for r in (0.0, *RATIOS, 1.0)))
COLUMNS = ("kind", *(cell(arm.name, ratio) for arm, ratio in CELLS))
SEED = 2029
PROMPTS = 1008  # 112 of each of the nine kinds
MOST_TOKENS = 64


class Answers:
    """Prompt number i is of kind i modulo the number of kinds."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        kind = KINDS[number % len(KINDS)]
        (example,) = draw(kind, range(number, number + 1), SEED)
        wanted = [(arm, ratio) for arm, ratio in CELLS if cell(arm.name, ratio) in missing]
        return {"kind": kind} | {cell(a.name, r): self._right(example, a, r, number) for a, r in wanted}

    def _right(self, example: Example, arm: Arm, ratio: float, number: int) -> int:
        pictures = [render(page) for page in example.pages]
        said = self._answerer.answer(conversation(example), pictures, arm.make(number), ratio, MOST_TOKENS)
        return int(said == example.answer)


def accuracies(rows: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Of every cell: accuracy with its interval over all prompts, and by kind."""
    found: dict[str, Any] = {"n": len(rows)}
    for column in COLUMNS[1:]:
        right = np.asarray([row[column] for row in rows.values()], dtype=np.float64)
        kinds = np.asarray([row["kind"] for row in rows.values()])
        by_kind = {kind: round(float(right[kinds == kind].mean()), 4) for kind in KINDS if (kinds == kind).any()}
        found[column] = {"accuracy": mean_interval(right).as_list(), "by_kind": by_kind}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    drawn = {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "pages": "2-8"}
    answers = Answers(Answerer.load(SHIPPED, torch.float32, "cpu"))
    try:
        recording = Recording(WORK / "accuracy" / "answers.jsonl", drawn)
        rows = recording.complete(range(options.prompts), COLUMNS, answers.row, "answers")
        figures = accuracies(rows)
        full = figures[cell(FULL.name, 1.0)]["accuracy"][0]
        if full == 0:
            raise NotMeasured("full prefill answers nothing right")
        ratios = {column: round(figures[column]["accuracy"][0] / full, 4) for column in COLUMNS[1:]}
        settings = drawn | described((FULL, REUSE, CONDUIT, RANDOM), RATIOS) | {"prompts": options.prompts}
        print(write_result(__file__, settings, ratios, figures))
    except NotMeasured as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
