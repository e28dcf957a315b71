"""What a correction and refining add to whole answers of the shipped model: `python -m eval.correction`.

Nine kinds of questions in turn, drawn from a seed that nothing was chosen on. Counted are questions that full prefill
answers and that the prompt without its pages does not. Writes `results/correction.json`; `ratios` are accuracy among
these (1 is full prefill), `recovered` in the figures is the share of the way from plain reuse to full prefill.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.result import NotMeasured, write_result
from demo.questions import KINDS
from engine.messages import ImagePart, Message
from engine.passes.forward import Work
from engine.passes.kv import RequestKV
from engine.passes.refine import Refiner, first_stale
from engine.passes.refresh import Prefill
from engine.serving.heap import keep_large_blocks_apart
from engine.serving.load import weights_fingerprint
from eval.arms import cell
from eval.forced import would_say, would_say_refining
from eval.page_prompts import SHIPPED, PageReader, conversation, draw
from eval.recording import WORK, Recording
from eval.statistics import Floats, mean_interval, share_interval
from eval.status import exit_status
from eval.trial import Arm, Prompt

SEED = 2051
PROMPTS = 1008  # 112 of each of the nine kinds
REFINE = 32
SHIFT, RIDGE = (("correction", "shift"),), (("correction", "ridge"),)
FULL, REUSE = Arm("full", "full"), Arm("reuse", "reuse")
BLIND = "blind"


@dataclass(frozen=True, slots=True)
class Tried:
    """An arm at a ratio. `refine`: prompt rows that are computed anew before each token behind the first."""

    arm: Arm
    ratio: float
    refine: int = 0

    @property
    def name(self) -> str:
        return cell(self.arm.name + ("_refine" if self.refine else ""), self.ratio)


CONDUIT, CONDUIT_RIDGE = Arm("conduit", "conduit"), Arm("conduit_ridge", "conduit", RIDGE)
IMPACT, IMPACT_SHIFT = Arm("impact", "impact"), Arm("impact_shift", "impact", SHIFT)
IMPACT_RIDGE = Arm("impact_ridge", "impact", RIDGE)
TRIED = (
    Tried(FULL, 1.0),
    Tried(REUSE, 0.0),
    *(Tried(arm, 0.10) for arm in (CONDUIT, CONDUIT_RIDGE, IMPACT, IMPACT_SHIFT, IMPACT_RIDGE)),
    Tried(IMPACT_RIDGE, 0.20),
    Tried(IMPACT_RIDGE, 0.10, REFINE),
)
NAMES = tuple(tried.name for tried in TRIED)
# What each is compared with, prompt by prompt; first the same rule without what was added.
BESIDE = {
    "conduit_ridge.r10": ("conduit.r10",),
    "impact.r10": ("conduit.r10",),
    "impact_shift.r10": ("impact.r10",),
    "impact_ridge.r10": ("impact.r10", "conduit.r10", "impact_shift.r10"),
    "impact_ridge_refine.r10": ("impact_ridge.r10",),
}


class Answers:
    """Prompt number i is of kind i modulo the number of kinds."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        """{"kind": its kind, "blind": right without pages or not, "<arm>.r<percent>": right or not}."""
        kind = KINDS[number % len(KINDS)]
        (example,) = draw(kind, range(number, number + 1), SEED)
        prompt = self._reader.prompt(example, example.question.text)
        answer = self._reader.answer_tokens(example.answer)
        kv = self._reader.pool.take(prompt.slots + len(answer))
        try:
            right = {t.name: self._right(prompt, kv, answer, t, number) for t in TRIED if t.name in missing}
            right[BLIND] = self._right_without_pages(conversation(example), kv, answer)
        finally:
            self._reader.pool.give_back(kv)
        return {"kind": kind} | right

    def _right(self, prompt: Prompt, kv: RequestKV, answer: Sequence[int], tried: Tried, number: int) -> int:
        family, layout, policy = self._reader.family, prompt.layout, tried.arm.make(number)
        prefill = Prefill(family, kv, layout, prompt.features, Work())
        found = (
            prefill.full() if not policy.uses_store else prefill.reuse(prompt.entries, policy, tried.ratio)
        )
        behind = (layout.length, layout.next_position)
        if not tried.refine:
            return int(would_say(family, kv, found.logits, *behind, answer))
        refiner = Refiner(family, prefill.prompt_rows, first_stale(layout, found.exact), Work())
        return int(would_say_refining(family, kv, found.logits, *behind, answer, refiner, tried.refine))

    def _right_without_pages(self, messages: Sequence[Message], kv: RequestKV, answer: Sequence[int]) -> int:
        words = [
            Message(m.role, tuple(part for part in m.parts if not isinstance(part, ImagePart)))
            for m in messages
        ]
        layout = self._reader.chat.layout([m for m in words if m.parts], [])
        logits = Prefill(self._reader.family, kv, layout, [], Work()).full().logits
        return int(would_say(self._reader.family, kv, logits, layout.length, layout.next_position, answer))


def figures_of(rows: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Of every cell: accuracy among the counted, by kind, what it recovers of the way from plain reuse to full prefill,
    and the paired difference to what it is compared with."""
    full = cell(FULL.name, 1.0)
    counted = [row for row in rows.values() if row[full] and not row[BLIND]]
    if not counted:
        raise NotMeasured("full prefill answers nothing that cannot be guessed")
    kinds = np.asarray([row["kind"] for row in counted])
    right = {name: np.asarray([row[name] for row in counted], dtype=np.float64) for name in NAMES}
    reuse = right[cell(REUSE.name, 0.0)]
    found: dict[str, Any] = {
        "n": len(rows),
        "counted": len(counted),
        "full_accuracy": share_interval(_column(rows, full)).as_list(),
        "blind_accuracy": share_interval(_column(rows, BLIND)).as_list(),
    }
    for name, values in right.items():
        by_kind = {k: round(float(values[kinds == k].mean()), 4) for k in KINDS if (kinds == k).any()}
        lost = 1 - float(reuse.mean())
        found[name] = {
            "accuracy": share_interval(values).as_list(),
            "by_kind": by_kind,
            "recovered": round(float((values - reuse).mean()) / lost, 4) if lost else 1.0,
        }
        for other in BESIDE.get(name, ()):
            found[name][f"minus_{other}"] = mean_interval(values - right[other]).as_list()
    found["by_kind_counted"] = {k: int((kinds == k).sum()) for k in KINDS}
    return found


def _column(rows: Mapping[int, Mapping[str, Any]], name: str) -> Floats:
    return np.asarray([row[name] for row in rows.values()], dtype=np.float64)


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    drawn = {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "pages": "2-8", "refine": REFINE}
    recording = Recording(WORK / "correction" / "answers.jsonl", drawn)
    answers = Answers(PageReader.load())
    columns = ("kind", BLIND, *NAMES)
    figures = figures_of(recording.complete(range(options.prompts), columns, answers.row, "answers"))
    ratios = {f"whole.{name}": figures[name]["accuracy"][0] for name in NAMES}
    print(write_result(__file__, drawn | {"prompts": options.prompts}, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
