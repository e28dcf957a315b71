"""One change at a time to CONDUIT's rule, on the sets where rules differ most: `python -m eval.ablations`.

Table 4's form (image weight), Table 5's form (without the image coefficient, without value norms) and the other choices
by which the defaults were fixed: layers, value mode, image weight, query span, which text scores, which text is
refreshed (blocks and an adaptive budget are in `eval.own_rule`). Accuracy shares prompts and rows with
`eval.shifted_prefix`; at r = .10 each change is also looked into: how many of the tokens are those that `conduit`
chooses, what the query rows' attention is left with (E2 of `eval.residual`), and what the prefill costs (its FLOPs as
the engine counts them; `benchmarks/ttft` compares those with time). Writes `results/ablations.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.result import write_result
from engine.passes.forward import Work
from engine.passes.refresh import Prefill
from engine.policies.base import Policy
from engine.policies.known import make_policy
from engine.prompt.layout import Ints
from engine.serving.heap import keep_large_blocks_apart
from eval.arms import described
from eval.ideas import AllTextScores, TailRefresh
from eval.page_prompts import PageReader, draw
from eval.recording import WORK, Recording
from eval.residual import Residual
from eval.shifted_prefix import SEED, SETS, drawn_by, sweep_set
from eval.status import exit_status
from eval.trial import Arm, Idea, Trial

RATIOS = (0.02, 0.05, 0.10)
PROMPTS = 500
# The budget that is looked into, and on how many prompts.
LOOKED_INTO = 0.10
LOOKED_AT = 100
DEFAULT_SETS = ("page_order", "question_first", "two_hop")


def _conduit(name: str, **options: object) -> Arm:
    return Arm(name, "conduit", tuple(options.items()))


ABLATIONS = (
    _conduit("conduit"),
    _conduit("layers_middle", score_layers="middle"),
    _conduit("layers_last_quarter", score_layers="last_quarter"),
    _conduit("values_per_head", value_mode="per_head"),
    _conduit("values_wo", value_mode="wo"),
    _conduit("values_none", value_mode="none"),
    _conduit("weight_0", image_weight=0.0),
    _conduit("weight_25", image_weight=0.25),
    _conduit("weight_50", image_weight=0.5),
    _conduit("weight_75", image_weight=0.75),
    _conduit("weight_0_values_none", image_weight=0.0, value_mode="none"),
    _conduit("span_tail", query_span="tail"),
    _conduit("span_last_4", query_span="last_4"),
    _conduit("min_1_per_image", min_per_image=1),
    Idea("stage1_all_text", "", rule=AllTextScores()),
    Idea("stage1_all_text_refresh_tail", "", rule=TailRefresh()),
    _conduit("conduit_paper", preset="paper"),
    Arm("impact", "impact"),
    Arm("impact_undamped", "impact", (("image_damping", 0.0),)),
)


class Details:
    """Looks into the changes on prompts of one set: {arm: [share of conduit's tokens, E2 or None, FLOPs]}."""

    def __init__(self, reader: PageReader, kind: str) -> None:
        self._reader, self._kind = reader, kind

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        (example,) = draw(self._kind, range(number, number + 1), SEED)
        prompt = self._reader.prompt(example, example.question.text)
        trial = Trial(self._reader.family, self._reader.pool, prompt)
        try:
            residual = Residual(self._reader, trial)
            anchor = trial.chosen(make_policy("conduit", {}), LOOKED_INTO)
            return {arm.name: self._look(trial, residual, arm.make(number), anchor) for arm in ABLATIONS}
        finally:
            trial.close()

    def _look(
        self, trial: Trial, residual: Residual, policy: Policy, anchor: Ints
    ) -> tuple[float, float | None, int]:
        chosen = trial.chosen(policy, LOOKED_INTO)
        shared = len(np.intersect1d(chosen, anchor)) / max(1, len(anchor))
        e2 = None
        # E2 refreshes all text and keeps exact pages: other refreshes have none.
        if policy.keeps_exact and policy.refresh_text:
            e2 = sum(residual.refresh(np.searchsorted(residual.candidates.slots, chosen)))
        work = Work()
        prefill = Prefill(self._reader.family, trial.kv, trial.prompt.layout, trial.prompt.features, work)
        prefill.reuse(trial.prompt.entries, policy, LOOKED_INTO)
        return round(shared, 5), e2, work.flops


def looked_into(rows: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Means over prompts; E2 and FLOPs as a share of `conduit`'s."""

    def total(arm: str, which: int) -> float | None:
        values = [row[arm][which] for row in rows.values()]
        return None if None in values else float(np.sum(values))

    found: dict[str, Any] = {"n": len(rows)}
    for arm in ABLATIONS:
        e2, flops = (
            None
            if (ours := total(arm.name, which)) is None
            else round(ours / (total("conduit", which) or 1), 4)
            for which in (1, 2)
        )
        overlap = round(float(np.mean([row[arm.name][0] for row in rows.values()])), 4)
        found[arm.name] = {"overlap": overlap, "e2": e2, "flops": flops}
    return found


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts per set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(DEFAULT_SETS))
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    reader = PageReader.load()
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for kind in options.sets:
        table = sweep_set(reader, kind, options.prompts, ABLATIONS, RATIOS)
        table.check_ends()
        ratios |= table.shares(kind)
        recording = Recording(WORK / "ablations" / f"{kind}.jsonl", drawn_by() | {"ratio": LOOKED_INTO})
        details = recording.complete(
            range(min(LOOKED_AT, options.prompts)),
            [arm.name for arm in ABLATIONS],
            Details(reader, kind).row,
            f"{kind}, in detail",
        )
        figures[kind] = table.figures("conduit") | {"at_r10": looked_into(details)}
    settings = drawn_by() | described(ABLATIONS, RATIOS) | {"prompts_per_set": options.prompts}
    print(write_result(__file__, settings, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
