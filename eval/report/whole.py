"""Whole answers of the shipped model."""

from __future__ import annotations

from eval.report.tables import Result, percent, table, with_width

BY_KIND = ("full.r100", "reuse.r0", "conduit.r5", "conduit.r10", "conduit.r20", "impact.r10", "random.r10")


def accuracy_section(found: Result) -> list[str]:
    figures = found["figures"]
    cells = {name: entry for name, entry in figures.items() if isinstance(entry, dict)}
    rows = [[name, percent(with_width(entry["accuracy"], figures["n"]))] for name, entry in cells.items()]
    kinds = list(figures["full.r100"]["by_kind"])
    wanted = [name for name in BY_KIND if name in figures]
    by_kind = [[k, *(f"{100 * figures[c]['by_kind'][k]:.1f}" for c in wanted)] for k in kinds]
    text = [f"Whole answers, word for word, n = {figures['n']}, accuracy in % with 95 % intervals.", ""]
    return [*text, *table(["cell", "accuracy"], rows), *table(["kind", *wanted], by_kind)]
