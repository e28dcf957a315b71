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
    "conduit_ridge.r10": "`conduit`, 10 %, ridge",
    "impact.r10": "`impact`, 10 %",
    "impact_shift.r10": "`impact`, 10 %, shift",
    "impact_ridge.r10": "`impact`, 10 %, ridge",
    "impact_ridge_refine.r10": "`impact`, 10 %, ridge and refine",
    "impact_ridge.r20": "`impact`, 20 %, ridge",
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
        " paired difference, in points with its 95 % interval, to the row without what was added last (of `impact`"
        " alone to `conduit`).",
        "",
        *table(["", "right, %", "recovered, %", "gained", *kinds], rows),
        "Ridge and shift move the tokens that were not chosen by what the chosen ones show (`correction`); refine"
        f" computes {found['settings']['refine']} prompt rows anew with each token (`cache.refine`). All are off by"
        " default: [what speaks against it](../../docs/policies/correction.md).",
        "",
    ]


def _row(figures: Mapping[str, Any], name: str, kinds: list[str]) -> list[str]:
    entry = figures[name]
    against = next((value for key, value in entry.items() if key.startswith("minus_")), None)
    gained = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * x for x in against)) if against else ""
    return [
        compact(with_width(entry["accuracy"], figures["counted"])),
        f"{100 * entry['recovered']:.1f}",
        gained,
        *(f"{100 * entry['by_kind'][kind]:.1f}" for kind in kinds),
    ]
