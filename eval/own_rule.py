"""What was tried for a rule of our own, on both judges: `python -m eval.own_rule` (`--judges chunks`: extra `eval`).

Ideas (see `eval.ideas`) on page questions and on SmolLM2's text chunks, at equal budget and on the same prompts; and
`conduit`, `impact` and what deviates behind other compile prefixes: the chat template (what the engine uses), the same
with a neutral picture in front, one start token, four start tokens. Writes `results/own_rule.json`; `ratios` are shares
of full prefill's accuracy (pages) or of plain reuse's KL (chunks: lower is better).
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import write_result
from demo.pages import GRID
from engine.families.base import Family
from engine.passes.kv import KVPool
from engine.policies.base import Policy
from engine.serving.heap import keep_large_blocks_apart
from eval import page_prompts, shifted_prefix, smollm2, smollm2_judge
from eval.arms import cell
from eval.ideas import Adaptive, Blocks, Concentrated, Dealt, Sinks, Stale, TwoRounds, in_two_rounds
from eval.page_prompts import PageReader
from eval.recording import WORK, Recording
from eval.smollm2 import ChunkReader
from eval.status import exit_status
from eval.sweep import Draw, Table, cells, columns, measure
from eval.trial import Arm, Idea, Trial

PAGE_RATIOS = (0.02, 0.05, 0.10)
CHUNK_RATIOS = (0.10, 0.20)
PROMPTS = 100
CHUNK_PROMPTS = 40
# Sets below the ceiling: on the others all of these answer everything.
PAGE_SETS = ("page_order", "question_first")
# A width that no chunk has: a chunk is one row.
ONE_ROW = 1_000_000


ANCHORS = (Arm("conduit", "conduit"), Arm("impact", "impact"))
IDEAS = (
    *ANCHORS,
    Arm("impact_undamped", "impact", (("image_damping", 0.0),)),
    Arm("impact_last_quarter", "impact", (("score_layers", "last_quarter"),)),
    Arm("attention_x_values_per_head", "conduit", (("value_mode", "per_head"), ("image_weight", 0.0))),
    Idea("sinks_1", "", rule=Sinks(1)),
    Idea("sinks_4", "", rule=Sinks(4)),
    Idea("dealt", "", rule=Dealt()),
    Idea("concentrated", "", rule=Concentrated()),
    Idea("stale", "", rule=Stale()),
    Idea("two_rounds", "", rule=TwoRounds()),
)
PAGE_IDEAS = (
    *IDEAS,
    Idea("runs_of_3", "", rule=Blocks(1, 3, GRID)),
    Idea("blocks_2x2", "", rule=Blocks(2, 2, GRID)),
)
CHUNK_IDEAS = (*IDEAS, Idea("runs_of_4", "", rule=Blocks(1, 4, ONE_ROW)))
# Their budget is a limit; what they spent of it is written beside.
ADAPTIVE = tuple(Idea(f"adaptive_{100 * tau:g}", "", rule=Adaptive(tau)) for tau in (0.2, 0.35, 0.5))
# What a compile prefix could change the order of.
BEHIND_OTHERS = (
    *ANCHORS,
    Idea("stale", "", rule=Stale()),
    Arm("first_k", "first_k"),
    Arm("cacheblend_original", "cacheblend", (("variant", "original"),)),
)


class IdeaTrial(Trial):
    """A trial that knows how to look twice."""

    def run(self, policy: Policy, ratio: float) -> torch.Tensor:
        if isinstance(policy, TwoRounds):
            return in_two_rounds(self.own, self.prompt.entries, ratio)
        return Trial.run(self, policy, ratio)


@dataclass(frozen=True, slots=True)
class Study:
    """Arms on one set of one judge. `draw` gives prompt number i and the token that answers it."""

    name: str
    family: Family
    pool: KVPool
    draw: Draw
    arms: tuple[Arm, ...]
    ratios: tuple[float, ...]

    def measured(self, prompts: int, settings: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        recording = Recording(WORK / "own_rule" / f"{self.name}.jsonl", settings)
        wanted = [*columns(self.arms, self.ratios), *(self._share(arm, r) for arm, r in self._adaptive())]
        return recording.complete(range(prompts), wanted, self._row, self.name)

    def figures(self, rows: Mapping[int, Mapping[str, Any]]) -> tuple[Table, dict[str, Any]]:
        shares = {self._share(arm, r): cell(arm.name, r) for arm, r in self._adaptive()}
        answers = columns(self.arms, self.ratios)
        table = Table.of({n: {c: row[c] for c in answers} for n, row in rows.items()})
        table.check_ends()
        found = table.figures("impact")
        for share, name in shares.items():
            found[name]["mean_share"] = round(sum(row[share] for row in rows.values()) / len(rows), 4)
        return table, found

    @torch.inference_mode()
    def _row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        prompt, right = self.draw(number)
        trial = IdeaTrial(self.family, self.pool, prompt)
        try:
            row = measure(trial, right, cells(self.arms, self.ratios), missing, number)
            for arm, ratio in self._adaptive():
                chosen = trial.chosen(arm.make(number), ratio)
                row[self._share(arm, ratio)] = round(len(chosen) / len(prompt.layout.candidates()), 5)
            return row
        finally:
            trial.close()

    def _adaptive(self) -> list[tuple[Arm, float]]:
        return [(arm, ratio) for arm, ratio in cells(self.arms, self.ratios) if arm in ADAPTIVE]

    @staticmethod
    def _share(arm: Arm, ratio: float) -> str:
        return f"share.{cell(arm.name, ratio)}"


def page_study(kind: str, prefix: str) -> Study:
    reader = PageReader.load(prefix=prefix)
    arms = (*PAGE_IDEAS, *ADAPTIVE) if prefix == "template" else ()
    every = tuple(dict.fromkeys((*arms, *BEHIND_OTHERS)))
    questions = shifted_prefix.page_questions(reader, kind)
    return Study(f"{kind}_{prefix}", reader.family, reader.pool, questions, every, PAGE_RATIOS)


def chunk_study(prefix: str, cache: Path) -> Study:
    reader = ChunkReader.load(prefix, cache)
    arms = (*CHUNK_IDEAS, *ADAPTIVE) if prefix == "template" else ()
    every = tuple(dict.fromkeys((*arms, *BEHIND_OTHERS)))
    questions = smollm2_judge.chunk_questions(reader)
    return Study(f"chunks_{prefix}", reader.family, reader.pool, questions, every, CHUNK_RATIOS)


@exit_status(FileNotFoundError)
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="page questions per set")
    parser.add_argument("--chunk-prompts", type=int, default=CHUNK_PROMPTS)
    parser.add_argument("--judges", nargs="+", choices=("pages", "chunks"), default=["pages", "chunks"])
    parser.add_argument("--measure-only", action="store_true", help="fill the recording, write no result")
    parser.add_argument(
        "--cache", type=Path, default=WORK / "smollm2", help="where SmolLM2's unpacked weights are kept"
    )
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    if "pages" in options.judges:
        for kind in PAGE_SETS:
            for prefix in page_prompts.PREFIXES:
                study = page_study(kind, prefix)
                table, figures[study.name] = study.figures(
                    study.measured(options.prompts, shifted_prefix.drawn_by())
                )
                ratios |= table.shares(study.name)
    if "chunks" in options.judges:
        for prefix in smollm2.PREFIXES:
            study = chunk_study(prefix, options.cache)
            rows = study.measured(options.chunk_prompts, {"seed": smollm2_judge.SEED})
            table, figures[study.name] = study.figures(rows)
            ratios |= table.kl_ratios(study.name)
    if options.measure_only:
        return
    settings = shifted_prefix.drawn_by() | {
        "prompts_per_set": options.prompts,
        "chunk_prompts": options.chunk_prompts,
    }
    print(write_result(__file__, settings, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
