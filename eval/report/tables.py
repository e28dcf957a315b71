"""Figures of a result file as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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


def compact(estimate: Sequence[float], scale: float = 100, digits: int = 1) -> str:
    """`[mean, low, high]` as mean and the longer half of the interval."""
    mean, low, high = estimate
    return f"{scale * mean:.{digits}f} ±{scale * max(mean - low, high - mean):.{digits}f}"


def shares_of(figures: Mapping[str, Any]) -> list[str]:
    """The budgets in per cent, without the two ends."""
    found = sorted({name.split(".r", 1)[1] for name in figures if ".r" in name}, key=float)
    return [share for share in found if share not in ("0", "100")]


def cells_table(figures: Mapping[str, Any], field: str, anchor: str = "conduit") -> list[str]:
    """Policies by budget: mean with its 95 % interval, and behind it where the paired interval against `anchor`
    excludes zero, + or -."""
    _, scale, digits = FIELDS[field]
    shares = shares_of(figures)
    rows = [["reuse", *[compact(figures["reuse.r0"][field], scale, digits)] * len(shares)]]
    for arm in dict.fromkeys(name.split(".r", 1)[0] for name in figures if ".r" in name):
        if arm not in ("reuse", "everything"):
            cells = [cell_text(figures.get(f"{arm}.r{share}"), field, anchor) for share in shares]
            rows.append([arm, *cells])
    return table(["policy", *(f"r = {share} %" for share in shares)], rows)


def cell_text(entry: Mapping[str, Any] | None, field: str, anchor: str = "conduit") -> str:
    if entry is None:
        return "not tried"
    _, scale, digits = FIELDS[field]
    spent = f" (of {100 * entry['mean_share']:.1f} %)" if "mean_share" in entry else ""
    return f"{compact(entry[field], scale, digits)}{_mark(entry, field, anchor)}{spent}"


def _mark(entry: Mapping[str, Any], field: str, anchor: str) -> str:
    against = entry.get(f"{field}_minus_{anchor}")
    if against is None or against[1] <= 0 <= against[2]:
        return ""
    return " +" if against[1] > 0 else " -"
