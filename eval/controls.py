"""Why the control `wrong_query` lies above `random`: `python -m eval.controls`.

Most cells of a page are blank, and whatever is asked draws attention to those that are not. Beside the two controls
stand an unrelated question in plain English, and `random_ink`, which asks nothing: tokens drawn by lot, those of filled
cells before those of blank ones. For each the share of tokens in common with what `conduit` chooses by the prompt's own
question, and the share of filled cells among what is chosen. Stopped, it goes on where it was. Writes
`results/controls.json`; `ratios` are shares of full prefill's accuracy.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.result import write_result
from demo.pages import PAGE_PX
from demo.questions import Example
from engine.policies.base import Probe, SelectingPolicy, top
from engine.prompt.layout import Ints, PromptLayout
from engine.serving.heap import keep_large_blocks_apart
from eval.arms import cell, described
from eval.page_prompts import PageReader, conversation, draw
from eval.recording import WORK, Recording
from eval.shifted_prefix import SEED, drawn_by
from eval.status import exit_status
from eval.sweep import Table, cells, columns, measure
from eval.trial import Arm, Idea, Trial

RATIOS = (0.02, 0.05, 0.10)
PROMPTS = 200
SETS = ("page_order", "two_hop", "system")
UNRELATED = "How is the weather today?"
OWN = Arm("conduit", "conduit")
WRONG = Arm("wrong_query", "wrong_query")
# The same rule, on a trial whose foreign question is the unrelated one.
ELSEWHERE = Arm("unrelated", "wrong_query")
RANDOM_INK = Idea("random_ink", "")
RANDOM = Arm("random", "random")
ARMS = (OWN, WRONG, ELSEWHERE, RANDOM_INK, RANDOM)


@dataclass(frozen=True, slots=True)
class Ranked(SelectingPolicy):
    """The candidates of largest rank, which stands from the start."""

    ranks: tuple[float, ...]

    name: ClassVar[str] = "ranked"

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return top(torch.tensor(self.ranks), budget)


def filled_slots(example: Example, layout: PromptLayout) -> Ints:
    """The slots of all cells that hold something. A page's grid of tokens is its grid of cells."""
    held = [span.start + c.position for span in layout.spans for c in example.pages[span.image].cells]
    return np.array(held, dtype=np.int64)


def by_lot(number: int, filled: NDArray[np.bool_]) -> Ranked:
    """`filled` [candidates]: a lot for each, and those that are filled before all others."""
    lots = np.random.default_rng([SEED, number]).random(len(filled))
    return Ranked(tuple((lots + filled).tolist()))


class Controls:
    """Measures prompts of one set. The question of `wrong_query` on prompt i is that of prompt i + 1."""

    def __init__(self, reader: PageReader, kind: str) -> None:
        self._reader, self._kind = reader, kind

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        example, following = draw(self._kind, range(number, number + 2), SEED)
        prompt = self._reader.prompt(example, following.question.text)
        shapes = [self._reader.family.span(PAGE_PX, PAGE_PX)] * len(example.pages)
        unrelated = self._reader.chat.layout(conversation(example), shapes, UNRELATED).query
        candidates = prompt.layout.candidates()
        filled = candidates[np.isin(candidates, filled_slots(example, prompt.layout))]
        right = self._reader.first_token(example.answer)
        ink = replace(RANDOM_INK, rule=by_lot(number, np.isin(candidates, filled)))

        row: dict[str, Any] = {"filled": round(len(filled) / len(candidates), 5)}
        own: dict[float, Ints] = {}
        for asked, arms in (
            (prompt, (OWN, WRONG, ink, RANDOM)),
            (replace(prompt, foreign=unrelated), (ELSEWHERE,)),
        ):
            trial = Trial(self._reader.family, self._reader.pool, asked)
            try:
                row |= measure(trial, right, cells(arms, RATIOS), columns(arms, RATIOS), number)
                for arm, ratio in itertools.product(arms, RATIOS):
                    slots = trial.chosen(arm.make(number), ratio)
                    anchor = own.setdefault(ratio, slots)  # the own question's: it is the first arm
                    row[looked(arm, ratio)] = [_share(slots, anchor), _share(slots, filled)]
            finally:
                trial.close()
        return row


def _share(slots: Ints, among: Ints) -> float:
    return round(float(np.isin(slots, among).mean()), 5)


def looked(arm: Arm, ratio: float) -> str:
    """Column of [share of tokens in common with the own question's, share of filled cells]."""
    return f"chosen.{cell(arm.name, ratio)}"


def summary(rows: Mapping[int, Mapping[str, Any]]) -> tuple[Table, dict[str, Any]]:
    """The table of answers, and its figures with what was chosen added to each cell."""
    chosen = {looked(arm, ratio): cell(arm.name, ratio) for arm in ARMS for ratio in RATIOS}
    answers = columns(ARMS, RATIOS)
    table = Table.of({n: {c: row[c] for c in answers} for n, row in rows.items()})
    table.check_ends()
    found = table.figures(RANDOM_INK.name)
    found["filled"] = round(float(np.mean([row["filled"] for row in rows.values()])), 4)
    for column, name in chosen.items():
        overlap, ink = np.mean([row[column] for row in rows.values()], axis=0)
        found[name] |= {"overlap": round(float(overlap), 4), "ink": round(float(ink), 4)}
    return table, found


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts per set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--measure-only", action="store_true", help="fill the recording, write no result")
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    reader = PageReader.load()
    wanted = [*columns(ARMS, RATIOS), "filled", *(looked(arm, ratio) for arm in ARMS for ratio in RATIOS)]
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for kind in options.sets:
        recording = Recording(WORK / "controls" / f"{kind}.jsonl", drawn_by())
        rows = recording.complete(range(options.prompts), wanted, Controls(reader, kind).row, kind)
        table, figures[kind] = summary(rows)
        ratios |= table.shares(kind)
    if options.measure_only:
        return
    settings = drawn_by() | described(ARMS, RATIOS) | {"prompts_per_set": options.prompts}
    print(write_result(__file__, settings | {"unrelated": UNRELATED}, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
