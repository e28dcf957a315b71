"""What requests of the benchmark of sessions add up to, in figures and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
# The same figures give the same file.
matplotlib.rcParams["svg.hashsalt"] = "conduit"

from matplotlib import pyplot  # noqa: E402

from benchmarks.tables import WAYS  # noqa: E402

ORIGINS = ("chained_exact", "chained_refreshed", "reused", "refreshed", "computed")


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: seconds to its first token, what was computed up to it, tokens of its prompt by origin."""

    turn: int
    own_system: bool
    seconds: float
    gflop: float
    tokens: Mapping[str, int]


def summed(seen: Sequence[Seen]) -> dict[str, Any]:
    """Of the requests of one arm: their number, TTFT in milliseconds, GFLOP a request, share of tokens by origin."""
    milliseconds = 1000 * np.asarray([one.seconds for one in seen])
    tokens = {origin: sum(one.tokens[origin] for one in seen) for origin in ORIGINS}
    return {
        "requests": len(seen),
        "ttft_ms": {f"p{p}": round(float(np.percentile(milliseconds, p)), 1) for p in (50, 90, 99)},
        "ttft_mean_ms": round(float(milliseconds.mean()), 1),
        "gflop": round(float(np.mean([one.gflop for one in seen])), 2),
        "origins": {origin: round(count / sum(tokens.values()), 4) for origin, count in tokens.items()},
    }


def figures_of(arms: Mapping[str, Sequence[Seen]]) -> tuple[dict[str, float], dict[str, Any]]:
    """Ratios to full prefill alone, and every arm in all, by turn, and by whose system prompt it was."""
    parts: dict[str, Callable[[Seen], bool]] = {
        "all": lambda one: True,
        "first_turns": lambda one: one.turn == 0,
        "later_turns": lambda one: one.turn > 0,
        "own_system_prompt": lambda one: one.own_system,
    }
    figures = {
        name: {part: summed(some) for part, of in parts.items() if (some := [one for one in seen if of(one)])}
        for name, seen in arms.items()
    }
    full = figures["full"]["all"]
    ratios = {}
    for name in list(WAYS)[:-1]:
        found = figures[name]["all"]
        ratios[f"{name}_ttft_p50_vs_full"] = found["ttft_ms"]["p50"] / full["ttft_ms"]["p50"]
        ratios[f"{name}_ttft_p99_vs_full"] = found["ttft_ms"]["p99"] / full["ttft_ms"]["p99"]
        ratios[f"{name}_gflop_vs_full"] = found["gflop"] / full["gflop"]
    return ratios, figures


def draw(figures: Mapping[str, Any], file: Path) -> None:
    """Of each way to serve, times to the first token and where the tokens of prompts are from."""
    figure, (times, parts) = pyplot.subplots(1, 2, figsize=(9.6, 3.4), sharey=True)
    ways = list(figures)
    places = np.arange(len(ways))
    for offset, percentile in enumerate(("p50", "p90", "p99")):
        widths = [figures[way]["all"]["ttft_ms"][percentile] for way in ways]
        times.barh(places + 0.27 * (offset - 1), widths, 0.25, label=percentile)
    times.set_xscale("log")
    times.set_xlabel("time to the first token, ms")
    times.set_yticks(places, [WAYS[way] for way in ways])
    times.invert_yaxis()
    times.legend(fontsize=7)
    left = np.zeros(len(ways))
    for origin in ORIGINS:
        shares = np.asarray([100 * figures[way]["all"]["origins"][origin] for way in ways])
        parts.barh(places, shares, 0.6, left=left, label=origin.replace("_", ", "))
        left += shares
    parts.set_xlabel("tokens of prompts by origin, %")
    parts.legend(
        fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=5, columnspacing=1, handlelength=1
    )
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
