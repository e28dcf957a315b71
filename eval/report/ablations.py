"""One change at a time: to CONDUIT's rule, and to ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eval.paper import ABLATION_ROWS, LAMBDA_SWEEP
from eval.report.tables import FIELDS, Result, cell_text, cells_table, differences, table

# Our arms that the paper's Tables 4 and 5 speak of.
WEIGHT_ARMS = {0.0: "weight_0", 0.25: "weight_25", 0.5: "weight_50", 0.75: "weight_75", 1.0: "conduit"}
WITHOUT_ARMS = ("conduit", "weight_0", "values_none")


def ablation_section(found: Result) -> list[str]:
    lines = []
    sets = found["figures"]
    looks = differences(sets.values(), "accuracy")
    for kind, figures in sets.items():
        lines += [f"### {kind}", "", f"n = {figures['n']}. {FIELDS['accuracy'][0]}.", ""]
        lines += cells_table(figures, "accuracy", looks)
        lines += details_table(figures["at_r10"])
    lines += [
        "### Beside the paper's Tables 4 and 5",
        "",
        "r = .10, ours in % of first words that are right.",
        "",
    ]

    def ours(arms: Iterable[str]) -> list[list[str]]:
        return [
            [
                f"ours, {kind}",
                *(cell_text(figures.get(f"{arm}.r10"), "accuracy", figures["n"], looks) for arm in arms),
            ]
            for kind, figures in sets.items()
        ]

    paper = ["paper, Qwen2.5-VL-3B", *(f"{value:.2f}" for value in LAMBDA_SWEEP.values())]
    lines += table(["image weight", *(f"{w:g}" for w in LAMBDA_SWEEP)], [paper, *ours(WEIGHT_ARMS.values())])
    rows = [[f"paper, {b}", *(f"{value:.2f}" for value in row)] for b, row in ABLATION_ROWS.items()]
    head = ["", "CONDUIT", "without image coefficient", "without values"]
    return lines + table(head, [*rows, *ours(WITHOUT_ARMS)])


def details_table(details: Mapping[str, Any]) -> list[str]:
    rows = [
        [arm, f"{100 * e['overlap']:.1f}", "-" if e["e2"] is None else f"{e['e2']:.3f}", f"{e['flops']:.3f}"]
        for arm, e in details.items()
        if arm != "n"
    ]
    lines = [
        f"At r = .10, n = {details['n']}: the share of `conduit`'s tokens that are chosen, E2 and the FLOPs of the"
    ]
    lines[0] += " prefill as shares of `conduit`'s (E2 only where the same text is refreshed)."
    return [*lines, "", *table(["change", "tokens in common, %", "E2", "FLOPs"], rows)]


def own_rule_section(found: Result) -> list[str]:
    """One table a study; here `impact` is what is compared with."""
    lines = [
        "In this section `+` and `-` compare with `impact`. An adaptive budget is a limit: behind the figure"
    ]
    lines[0] += (
        " stands what was spent of it. Pages: accuracy of the first word in %; chunks: KL to full prefill in nats."
    )
    lines.append("")
    studies = found["figures"]
    for study, figures in studies.items():
        lines += [f"### {study.replace('_', ' ')}, n = {figures['n']}", ""]
        field = "kl" if study.startswith("chunks") else "accuracy"
        lines += cells_table(figures, field, differences(studies.values(), field, "impact"), "impact")
    return lines
