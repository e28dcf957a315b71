"""Residual error of the query rows, beside the paper's Table 11."""

from __future__ import annotations

from eval.paper import RESIDUAL, RESIDUAL_OVER_VALUES
from eval.report.tables import Result, table


def residual_section(found: Result) -> list[str]:
    lines = [
        "All layers together: E(random) / E(rule) and, behind the bar, E(value norms alone) / E(rule); the"
        " larger the better. The paper's rows are its Table 11.",
        "",
    ]
    ratios = found["ratios"]
    shares = ("5", "10", "20", "30", "50")
    for kind, figures in found["figures"].items():
        rows = []
        for form in ("transplant", "refresh"):
            for rule in ("attention", "attention_x_values", "conduit"):
                at = [f"{kind}.{form}.{rule}.r{share}.over_" for share in shares]
                cells = [f"{ratios[a + 'random']:.2f} \\| {ratios[a + 'values_only']:.2f}" for a in at]
                rows.append([f"{form}: {rule}", *cells])
        correlation = ", ".join(f"{c:.3f}" for c in figures["rank_correlation_by_layer"])
        lines += [
            f"### {kind}, n = {figures['n']}",
            "",
            *table(["rule", *(f"r = {s} %" for s in shares)], rows),
        ]
        lines += [
            f"Rank correlation of attention and attention x value norm, layer by layer: {correlation}.",
            "",
        ]
    lines += table(["paper, layer 24 of 36", *(f"r = {s} %" for s in shares)], paper_rows())
    alone = []
    for share in shares:
        worth = [
            over / ratios[name.removesuffix("random") + "values_only"]
            for name, over in ratios.items()
            if name.endswith(f".r{share}.over_random")
        ]
        alone.append(f"{min(worth):.1f} to {max(worth):.1f}")
    printed = RESIDUAL["value norms alone"]
    text = (
        f"E(random) / E(value norms alone) at r = {' / '.join(shares)} % is {' / '.join(alone)} here and"
        f" {min(printed):.1f} to {max(printed):.1f} in the paper. On these pages the norm tells the few cells that hold"
        " something from the blank ones, not which of them is asked for: it is worth most where the budget"
        " holds all of them."
    )
    return [*lines, text, ""]


def paper_rows() -> list[list[str]]:
    """Over random and, behind the bar where it is not the rule itself, over value norms alone."""
    rows = []
    for rule, over_random in RESIDUAL.items():
        beside = RESIDUAL_OVER_VALUES.get(rule)
        cells = [f"{value:.2f}" for value in over_random]
        if beside is not None:
            cells = [f"{cell} \\| {value:.2f}" for cell, value in zip(cells, beside, strict=True)]
        rows.append([rule, *cells])
    return rows
