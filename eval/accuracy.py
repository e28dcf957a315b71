"""Whole greedy answers of the shipped model under reuse, conduit, impact and chance: `python -m eval.accuracy`.

Every kind of question in turn; an answer is right where it is the expected one, word for word. Writes
`results/accuracy.json`; `ratios` are shares of full prefill's accuracy over all kinds.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.result import NotMeasured, write_result
from demo.questions import KINDS
from engine.passes.forward import Work
from engine.passes.kv import RequestKV
from engine.passes.refresh import Prefill
from engine.serving.heap import keep_large_blocks_apart
from engine.serving.load import weights_fingerprint
from eval.arms import cell, described
from eval.forced import would_say
from eval.page_prompts import SHIPPED, PageReader, draw
from eval.recording import WORK, Recording
from eval.statistics import mean_interval, share_interval
from eval.status import exit_status
from eval.trial import Arm, Prompt

FULL, REUSE = Arm("full", "full"), Arm("reuse", "reuse")
CONDUIT, IMPACT, RANDOM = Arm("conduit", "conduit"), Arm("impact", "impact"), Arm("random", "random")
RULES = (CONDUIT, IMPACT, RANDOM)
RATIOS = (0.05, 0.10, 0.20)
# r = 0 is the same for every policy, and so is r = 1.
CELLS = ((FULL, 1.0), (REUSE, 0.0), *((a, r) for a in RULES for r in RATIOS), (CONDUIT, 1.0))
NAMES = tuple(cell(arm.name, ratio) for arm, ratio in CELLS)
COLUMNS = ("kind", *NAMES)
SEED = 2029
PROMPTS = 1008  # 112 of each of the nine kinds


class Answers:
    """Prompt number i is of kind i modulo the number of kinds."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        kind = KINDS[number % len(KINDS)]
        (example,) = draw(kind, range(number, number + 1), SEED)
        prompt = self._reader.prompt(example, example.question.text)
        answer = self._reader.answer_tokens(example.answer)
        kv = self._reader.pool.take(prompt.slots + len(answer))
        try:
            wanted = [(arm, ratio) for arm, ratio in CELLS if cell(arm.name, ratio) in missing]
            right = {cell(a.name, r): self._right(prompt, kv, answer, a, r, number) for a, r in wanted}
        finally:
            self._reader.pool.give_back(kv)
        return {"kind": kind} | right

    def _right(
        self, prompt: Prompt, kv: RequestKV, answer: Sequence[int], arm: Arm, ratio: float, number: int
    ) -> int:
        family, layout, policy = self._reader.family, prompt.layout, arm.make(number)
        prefill = Prefill(family, kv, layout, prompt.features, Work())
        found = prefill.reuse(prompt.entries, policy, ratio) if policy.uses_store else prefill.full()
        return int(would_say(family, kv, found.logits, layout.length, layout.next_position, answer))


def accuracies(rows: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Of every cell: accuracy with its interval over all prompts, and by kind; of our own rule also the paired
    difference to `conduit` at the same ratio."""
    found: dict[str, Any] = {"n": len(rows)}
    kinds = np.asarray([row["kind"] for row in rows.values()])
    every = {name: np.asarray([row[name] for row in rows.values()], dtype=np.float64) for name in NAMES}
    for name, right in every.items():
        by_kind = {
            kind: round(float(right[kinds == kind].mean()), 4) for kind in KINDS if (kinds == kind).any()
        }
        found[name] = {"accuracy": share_interval(right).as_list(), "by_kind": by_kind}
    for ratio in RATIOS:
        ours, anchor = cell(IMPACT.name, ratio), cell(CONDUIT.name, ratio)
        difference = mean_interval(every[ours] - every[anchor])
        found[ours]["accuracy_minus_conduit"] = difference.as_list()
    return found


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    drawn = {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "pages": "2-8"}
    answers = Answers(PageReader.load())
    recording = Recording(WORK / "accuracy" / "answers.jsonl", drawn)
    figures = accuracies(recording.complete(range(options.prompts), COLUMNS, answers.row, "answers"))
    full = figures[cell(FULL.name, 1.0)]["accuracy"][0]
    if full == 0:
        raise NotMeasured("full prefill answers nothing right")
    ratios = {name: round(figures[name]["accuracy"][0] / full, 4) for name in NAMES}
    settings = drawn | described((FULL, REUSE, *RULES), RATIOS) | {"prompts": options.prompts}
    print(write_result(__file__, settings, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
