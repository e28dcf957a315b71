"""The report's first page: what a user gets, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval.report.tables import Result, compact, percent, table, with_width

# Cells in the order of the table, and what a user would call them.
FIRST = {
    "full.r100": "full prefill",
    "reuse.r0": "plain reuse",
    "conduit.r10": "`conduit`, 10 % refreshed",
    "conduit.r20": "`conduit`, 20 %",
    "conduit_shift.r10": "`conduit`, 10 %, shift",
    "conduit_shift.r20": "`conduit`, 20 %, shift",
    "conduit_refine.r10": "`conduit`, 10 %, refine",
    "conduit_shift_refine.r10": "`conduit`, 10 %, shift and refine",
    "impact.r10": "`impact`, 10 %",
    "impact.r20": "`impact`, 20 %",
    "impact_shift.r10": "`impact`, 10 %, shift",
    "impact_shift.r20": "`impact`, 20 %, shift",
    "impact_refine.r10": "`impact`, 10 %, refine",
    "impact_shift_refine.r10": "`impact`, 10 %, shift and refine",
}


def first_section(found: Result) -> list[str]:
    figures = found["figures"]
    kinds = [kind for kind, counted in figures["by_kind_counted"].items() if counted]
    rows = [[said, *_row(figures, name, kinds)] for name, said in FIRST.items() if name in figures]
    return [
        f"Whole answers of the shipped model, word for word, n = {figures['n']} questions of a seed that nothing was"
        f" chosen on. Full prefill answers {percent(figures['full_accuracy'])} % of them, and the words without the"
        f" pages {percent(figures['blind_accuracy'])} %; counted are the {figures['counted']} that full prefill answers"
        " and the words alone do not. Recovered is the share of the way from plain reuse to full prefill; gained is the"
        " paired difference, in points with its 95 % interval, to the same rule and budget without what was added.",
        "",
        *table(["", "right, %", "recovered, %", "gained", *kinds], rows),
        f"Shift moves the tokens that were not chosen by what the chosen ones show (`correction`); refine computes"
        f" {found['settings']['refine']} prompt rows anew with each token (`cache.refine`). Both are off by default:"
        " [what speaks against it](../../docs/policies/correction.md).",
        "",
    ]


def _row(figures: Mapping[str, Any], name: str, kinds: list[str]) -> list[str]:
    entry = figures[name]
    against = [value for key, value in entry.items() if key.startswith("minus_")]
    gained = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * x for x in against[0])) if against else ""
    return [
        compact(with_width(entry["accuracy"], figures["counted"])),
        f"{100 * entry['recovered']:.1f}",
        gained,
        *(f"{100 * entry['by_kind'][kind]:.1f}" for kind in kinds),
    ]
