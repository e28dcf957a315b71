"""One prompt under every arm and ratio, and what many such rows say together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.result import NotMeasured
from engine.families.base import Family
from engine.passes.kv import KVPool
from eval.arms import EVERYTHING, REUSE, cell
from eval.statistics import Estimate, Floats, mean_interval, share_interval
from eval.trial import Arm, Prompt, Trial, kl_to_full

# Prompt number i of a set, and the token that a right answer starts with.
Draw = Callable[[int], tuple[Prompt, int]]
# The largest KL between r = 1 and full prefill that rounding can explain.
ROUNDING = 1e-3


def cells(arms: Iterable[Arm], ratios: Sequence[float]) -> list[tuple[Arm, float]]:
    """Every arm at every ratio, and the two ends, which all arms share, once."""
    tried = [(arm, r) for arm in arms for r in ratios if arm.ratios is None or r in arm.ratios]
    return [(REUSE, 0.0), *tried, (EVERYTHING, 1.0)]


def columns(arms: Iterable[Arm], ratios: Sequence[float]) -> list[str]:
    """What a row of `measure` holds when it is whole."""
    return ["full", *(cell(arm.name, ratio) for arm, ratio in cells(arms, ratios))]


def measure(
    trial: Trial, right: int, wanted: Sequence[tuple[Arm, float]], missing: Collection[str], number: int
) -> dict[str, Any]:
    """{"full": right or not, "<arm>.r<percent>": [right or not, agrees with full or not, KL to full]}, as far as it is
    missing."""
    best = int(trial.full.argmax())
    row: dict[str, Any] = {"full": int(best == right)}
    left = [(arm, ratio) for arm, ratio in wanted if cell(arm.name, ratio) in missing]
    for (arm, ratio), logits in zip(left, trial.run_all([(a.make(number), r) for a, r in left]), strict=True):
        said = int(logits.argmax())
        kl = round(kl_to_full(trial.full, logits), 6)
        row[cell(arm.name, ratio)] = [int(said == right), int(said == best), kl]
    return row


@dataclass(frozen=True, slots=True)
class Sweep:
    """Measures prompts of one set under arms at ratios."""

    family: Family
    pool: KVPool
    draw: Draw
    arms: Sequence[Arm]
    ratios: Sequence[float]

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        prompt, right = self.draw(number)
        trial = Trial(self.family, self.pool, prompt)
        try:
            return measure(trial, right, cells(self.arms, self.ratios), missing, number)
        finally:
            trial.close()


@dataclass(frozen=True, slots=True)
class Table:
    """Columns over prompts: `full` [prompts], `by_cell` [prompts, (right, agrees, kl)] by cell name."""

    full: Floats
    by_cell: dict[str, Floats]

    @classmethod
    def of(cls, rows: Mapping[int, Mapping[str, Any]]) -> Table:
        if not rows:
            raise NotMeasured("no prompt was measured")
        names = [name for name in next(iter(rows.values())) if name != "full"]
        full = np.asarray([row["full"] for row in rows.values()], dtype=np.float64)
        return cls(full, {n: np.asarray([row[n] for row in rows.values()], dtype=np.float64) for n in names})

    def right(self, name: str) -> Floats:
        found: Floats = self.by_cell[name][:, 0]
        return found

    def kl(self, name: str) -> Floats:
        found: Floats = self.by_cell[name][:, 2]
        return found

    def kl_difference(self, name: str, other: str) -> Estimate:
        """Of `name`'s KL to `other`'s, prompt by prompt."""
        return mean_interval(self.kl(name) - self.kl(other))

    def check_ends(self) -> None:
        """Raises `NotMeasured` where r = 1 was not full prefill: then no cell can be trusted."""
        worst = float(self.kl(cell(EVERYTHING.name, 1.0)).max())
        if worst > ROUNDING:
            raise NotMeasured(f"r = 1 differs from full prefill by a KL of {worst:.3g}")

    def figures(self, anchor: str) -> dict[str, Any]:
        """Of every cell: accuracy, agreement and KL with intervals, and the paired difference to `anchor`'s accuracy
        at the same ratio (percentage points)."""
        found: dict[str, Any] = {"n": len(self.full), "full_accuracy": share_interval(self.full).as_list()}
        for name, values in self.by_cell.items():
            entry = {
                "accuracy": share_interval(values[:, 0]).as_list(),
                "agreement": share_interval(values[:, 1]).as_list(),
                "kl": mean_interval(values[:, 2]).as_list(),
            }
            against = f"{anchor}.{name.split('.', 1)[1]}"
            if against in self.by_cell and against != name:
                entry["accuracy_minus_" + anchor] = mean_interval(
                    self.right(name) - self.right(against)
                ).as_list()
                entry["kl_minus_" + anchor] = mean_interval(self.kl(name) - self.kl(against)).as_list()
            found[name] = entry
        return found

    def shares(self, prefix: str) -> dict[str, float]:
        """`<prefix>.<arm>.r<percent>`: accuracy as a share of full prefill's."""
        full = float(self.full.mean())
        if full == 0:
            raise NotMeasured(f"{prefix}: full prefill answers nothing right")
        return {f"{prefix}.{name}": round(float(self.right(name).mean()) / full, 4) for name in self.by_cell}

    def kl_ratios(self, prefix: str) -> dict[str, float]:
        """`<prefix>.<arm>.r<percent>`: mean KL to full prefill, as a share of plain reuse's."""
        worst = float(self.kl(cell(REUSE.name, 0.0)).mean())
        if worst == 0:
            raise NotMeasured(f"{prefix}: plain reuse loses nothing, so nothing can be compared")
        return {f"{prefix}.{name}": round(float(self.kl(name).mean()) / worst, 4) for name in self.by_cell}
