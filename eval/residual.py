"""What a refresh leaves wrong inside the attention of the query rows: `python -m eval.residual`.

E1, "transplant": rows of S replaced by exact ones, nothing recomputed. E2, "refresh": what a real refresh of S leaves,
all layers before included. Table 11 of CONDUIT gives E(random) / E(rule) and, as we read it, is E1 with a squared norm
(refresh.md 8.2); we decide on E2. Writes `results/residual.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.result import write_result
from engine.passes.attention import Attention, Causal, by_order
from engine.passes.forward import Work, run_rows
from engine.passes.probe import Candidates
from engine.passes.refresh import Prefill
from engine.passes.score import attention_weights
from engine.policies.base import Probe, ScorePlan, budget, top
from engine.policies.conduit import image_coefficients
from engine.policies.known import make_policy
from engine.prompt.layout import Ints
from engine.serving.heap import keep_large_blocks_apart
from engine.serving.load import weights_fingerprint
from eval.page_prompts import SHIPPED, PageReader, draw
from eval.recording import WORK, Recording
from eval.statistics import rank_correlation
from eval.status import exit_status
from eval.trial import Trial

SETS = ("single_hop", "two_hop", "system")
RATIOS = (0.05, 0.10, 0.20, 0.30, 0.50)
RULES = ("random", "values_only", "attention", "attention_x_values", "conduit")
COLUMNS = ("correlation", *(f"{name}.r{100 * ratio:g}" for ratio in RATIOS for name in RULES))
SEED = 2027
PROMPTS = 200
CONDUIT = make_policy("conduit", {})


class Watched:
    """An attention that remembers what the last rows asked and got, layer by layer."""

    def __init__(self, attention: Attention, rows: int) -> None:
        self._attention, self._rows = attention, rows
        self.pairs = attention.pairs
        self.queries: list[torch.Tensor] = []
        self.attended: list[torch.Tensor] = []

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        found = self._attention(queries, keys, values)
        self.queries.append(queries[:, -self._rows :].clone())
        self.attended.append(found[:, -self._rows :].clone())
        return found


class Residual:
    """E1 and E2 of one prompt. The last layer runs its last row only and is left out."""

    def __init__(self, reader: PageReader, trial: Trial) -> None:
        self._family, self._trial, self._prefill = reader.family, trial, trial.own
        self._layout = trial.prompt.layout
        self._asking = len(self._layout.tail())
        self.full = self._run(np.arange(self._layout.length), Causal(self._layout.length))
        self._full_keys, self._full_values = trial.kv.keys.clone(), trial.kv.values.clone()
        self.candidates = trial.own.restore(trial.prompt.entries, CONDUIT, 0.5)
        # What reuse gets wrong before any refresh, and how much each query row looks at it.
        self._slots = torch.as_tensor(self.candidates.slots)
        self._wrong = self._full_values[:, :, self._slots] - trial.kv.values[:, :, self._slots]
        self._weights = [self._attention(layer) for layer in range(len(self.full.queries))]

    def transplant(self, chosen: Ints) -> list[float]:
        """E1 by layer; `chosen` are indices of candidates."""
        kept = torch.ones(len(self.candidates), dtype=torch.bool)
        kept[torch.as_tensor(chosen)] = False
        found = []
        for layer, weights in enumerate(self._weights):
            values = self._wrong[layer].repeat_interleave(self._family.shape.group, 0)
            missing = torch.bmm(weights[:, :, kept], values[:, kept])
            found.append(self._energy(layer, missing))
        return found

    def refresh(self, chosen: Ints) -> list[float]:
        """E2 by layer."""
        prefill = self._prefill
        prefill.restore(self._trial.prompt.entries, CONDUIT, 0.5)
        slots = np.sort(np.concatenate((self.candidates.slots[chosen], self._layout.text_slots())))
        attention = by_order(torch.as_tensor(slots), self._family.shape.group)
        mixed = self._run(slots, attention)
        pairs = zip(self.full.attended, mixed.attended, strict=True)
        return [self._energy(layer, full - ours) for layer, (full, ours) in enumerate(pairs)]

    def _run(self, slots: Ints, attention: Attention) -> Watched:
        watched = Watched(attention, self._asking)
        run_rows(self._family, self._trial.kv, self._prefill.rows(slots), watched, Work())
        return watched

    def _attention(self, layer: int) -> torch.Tensor:
        """Weights of the query rows on the candidates under full prefill: [heads, rows, candidates]."""
        length, shape = self._layout.length, self._family.shape
        rows = torch.arange(length - self._asking, length)
        mask = torch.zeros(len(rows), length).masked_fill_(
            torch.arange(length) > rows[:, None], float("-inf")
        )
        keys = self._full_keys[layer, :, :length]
        weights = attention_weights(self.full.queries[layer], keys, mask.repeat(shape.group, 1))
        return weights.view(shape.heads, len(rows), -1)[:, :, self._slots]

    def _energy(self, layer: int, missing: torch.Tensor) -> float:
        """Mean over rows of the squared norm behind the output projection; `missing` [heads, rows, head_dim]."""
        rows = missing.transpose(0, 1).reshape(missing.shape[1], -1)
        return float(F.linear(rows, self._family.output_projection(layer)).pow(2).sum(-1).mean())


def choices(probe: Probe, count: int, seed: int) -> dict[str, Ints]:
    """Candidate indices that each rule takes."""
    attention, values = probe.mass.mean(0), probe.norms.mean(0)
    both = (probe.mass * probe.norms).mean(0)
    drawn = torch.as_tensor(np.random.default_rng(seed).random(len(values)))
    scores = (drawn, values, attention, both, both * image_coefficients(both, probe.image, 1.0)[probe.image])
    return {name: top(score, count).numpy() for name, score in zip(RULES, scores, strict=True)}


class ResidualRows:
    """Measures prompts of one set."""

    def __init__(self, reader: PageReader, kind: str) -> None:
        self._reader, self._kind = reader, kind

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        (example,) = draw(self._kind, range(number, number + 1), SEED)
        trial = Trial(
            self._reader.family, self._reader.pool, self._reader.prompt(example, example.question.text)
        )
        try:
            return self._measure(trial, number)
        finally:
            trial.close()

    def _measure(self, trial: Trial, number: int) -> dict[str, Any]:
        residual = Residual(self._reader, trial)
        layers = self._reader.family.shape.layers
        probe = probe_of(trial.own, residual.candidates, layers)
        row: dict[str, Any] = {"correlation": rank_correlations(probe)}
        for ratio in RATIOS:
            for name, chosen in choices(probe, budget(ratio, len(residual.candidates)), number).items():
                key = f"{name}.r{100 * ratio:g}"
                row[key] = [residual.transplant(chosen), residual.refresh(chosen)]
        return row


def probe_of(prefill: Prefill, candidates: Candidates, layers: int) -> Probe:
    return prefill.prober.probe(candidates, ScorePlan(tuple(range(layers))), 0)


def rank_correlations(probe: Probe) -> list[float]:
    """Spearman's between attention and attention x value norm over the candidates, by layer."""
    both = (probe.mass * probe.norms).double().numpy()
    mass = probe.mass.double().numpy()
    return [round(rank_correlation(a, b), 5) for a, b in zip(mass, both, strict=True)]


def ratios_of(rows: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """E(random) / E(rule) and E(values only) / E(rule), E a mean over prompts: all layers together, and by layer."""
    found: dict[str, Any] = {}
    for ratio in RATIOS:
        at = f"r{100 * ratio:g}"
        mean = {name: np.mean([row[f"{name}.{at}"] for row in rows.values()], axis=0) for name in RULES}
        for name in RULES[2:]:
            for kind, which in (("transplant", 0), ("refresh", 1)):
                for base in ("random", "values_only"):
                    ours, theirs = mean[name][which], mean[base][which]
                    found[f"{kind}.{name}.{at}.over_{base}"] = {
                        "all": float(theirs.sum() / ours.sum()),
                        # Layer 0 is left out: it holds no context, so what differs there is rounding.
                        "by_layer": np.round(theirs[1:] / ours[1:], 3).tolist(),
                    }
    return found


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts per set")
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    reader = PageReader.load()
    settings = {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "ratios": list(RATIOS), "pages": "2-8"}
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for kind in SETS:
        recording = Recording(WORK / "residual" / f"{kind}.jsonl", settings)
        rows = recording.complete(range(options.prompts), COLUMNS, ResidualRows(reader, kind).row, kind)
        found = ratios_of(rows)
        ratios |= {f"{kind}.{name}": round(entry["all"], 3) for name, entry in found.items()}
        correlation = np.nanmean([row["correlation"] for row in rows.values()], axis=0)
        figures[kind] = {
            "n": len(rows),
            "rank_correlation_by_layer": correlation.round(4).tolist(),
            **found,
        }
    print(write_result(__file__, settings | {"prompts_per_set": options.prompts}, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
