"""Figures of a result file as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eval.statistics import beyond_chance, wilson

Result = Mapping[str, Any]

# How a field is called, by what its numbers are multiplied, and to how many digits.
FIELDS = {
    "accuracy": ("Accuracy of the first word, %", 100.0, 1),
    "agreement": ("Agreement of the first token with full prefill, %", 100.0, 1),
    "kl": ("KL to full prefill, nats", 1.0, 3),
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def percent(estimate: Sequence[float]) -> str:
    """`[mean, low, high]` as per cent with its interval."""
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in estimate))


def with_width(share: Sequence[float], count: int) -> Sequence[float]:
    """A share `[mean, low, high]` of `count` tries. One of 0 or 1 whose interval is a point gets Wilson's: older
    results are bootstrapped, and a bootstrap of equal values knows no doubt."""
    mean, low, high = share
    return wilson(mean, count).as_list() if low == high and mean in (0.0, 1.0) else share


def compact(estimate: Sequence[float], scale: float = 100, digits: int = 1) -> str:
    """`[mean, low, high]` as mean and the longer half of the interval."""
    mean, low, high = estimate
    return f"{scale * mean:.{digits}f} ±{scale * max(mean - low, high - mean):.{digits}f}"


def shares_of(figures: Mapping[str, Any]) -> list[str]:
    """The budgets in per cent, without the two ends."""
    found = sorted({name.split(".r", 1)[1] for name in figures if ".r" in name}, key=float)
    return [share for share in found if share not in ("0", "100")]


def differences(sets: Iterable[Mapping[str, Any]], field: str, anchor: str = "conduit") -> int:
    """How many cells of these sets are compared with the anchor's."""
    cells = (entry for figures in sets for entry in figures.values() if isinstance(entry, dict))
    return sum(f"{field}_minus_{anchor}" in entry for entry in cells)


def cells_table(figures: Mapping[str, Any], field: str, looks: int, anchor: str = "conduit") -> list[str]:
    """Policies by budget: mean with its 95 % interval, and behind it + or - where the paired difference to `anchor` is
    beyond chance among `looks` of them."""
    shares, count = shares_of(figures), figures["n"]
    rows = [["reuse", *[cell_text(figures["reuse.r0"], field, count, looks, anchor)] * len(shares)]]
    for arm in dict.fromkeys(name.split(".r", 1)[0] for name in figures if ".r" in name):
        if arm not in ("reuse", "everything"):
            found = [figures.get(f"{arm}.r{share}") for share in shares]
            cells = [cell_text(entry, field, count, looks, anchor) for entry in found]
            rows.append([arm, *cells])
    return table(["policy", *(f"r = {share} %" for share in shares)], rows)


def cell_text(
    entry: Mapping[str, Any] | None, field: str, count: int, looks: int = 1, anchor: str = "conduit"
) -> str:
    if entry is None:
        return "not tried"
    _, scale, digits = FIELDS[field]
    spent = f" (of {100 * entry['mean_share']:.1f} %)" if "mean_share" in entry else ""
    estimate = entry[field] if field == "kl" else with_width(entry[field], count)
    against = entry.get(f"{field}_minus_{anchor}", (0.0, 0.0, 0.0))
    mark = {1: " +", 0: "", -1: " -"}[beyond_chance(against, looks)]
    return f"{compact(estimate, scale, digits)}{mark}{spent}"
