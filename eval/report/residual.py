"""Residual error of the query rows, beside the paper's Table 11."""

from __future__ import annotations

from eval.paper import RESIDUAL_ROWS, VALUES_ALONE
from eval.report.tables import Result, table


def residual_section(found: Result) -> list[str]:
    lines = [
        "All layers together: E(random) / E(rule) and, behind the bar, E(value norms alone) / E(rule); the"
        " larger the better. The paper's row is its Table 11, over random.",
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
    lines += table(["paper", *(f"r = {s} %" for s in shares)], RESIDUAL_ROWS)
    alone = []
    for share in shares:
        worth = [
            over / ratios[name.removesuffix("random") + "values_only"]
            for name, over in ratios.items()
            if name.endswith(f".r{share}.over_random")
        ]
        alone.append(f"{min(worth):.1f} to {max(worth):.1f}")
    low, high = VALUES_ALONE
    text = (
        f"E(random) / E(value norms alone) at r = {' / '.join(shares)} % is {' / '.join(alone)} here and"
        f" {low:.1f} to {high:.1f} in the paper. On these pages the norm tells the few cells that hold"
        " something from the blank ones, not which of them is asked for: it is worth most where the budget"
        " holds all of them."
    )
    return [*lines, text, ""]
