"""One page from the committed results: `python -m eval.report` writes `results/report.md` and its curves.

Reads what `eval.accuracy`, `eval.shifted_prefix`, `eval.duel`, `eval.ablations`, `eval.own_rule`, `eval.residual`,
`eval.smollm2_judge` and `eval.published` have written; what was not run is named as such.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval.curves import Points, draw_curves
from eval.paper import ABLATION_ROWS, FIVE_SETS, LAMBDA_SWEEP, RESIDUAL_ROWS

RESULTS = Path(__file__).parent / "results"
SCRIPTS = (
    "accuracy",
    "shifted_prefix",
    "duel",
    "ablations",
    "own_rule",
    "residual",
    "smollm2_judge",
    "published",
)

# Percentage points that a new default may at most be worse by.
WORST_POINTS = 0.5

Result = Mapping[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def percent(estimate: Sequence[float]) -> str:
    """`[mean, low, high]` as per cent with its interval."""
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in estimate))


def provenance(name: str, found: Result) -> str:
    machine = found["machine"]
    versions = f"torch {machine['torch']}, transformers {machine['transformers']}"
    where = f"{machine['cpu']}, {machine['cores']} cores, one thread a process, {machine['accelerator'] or 'no GPU'}"
    return (
        f"`python -m eval.{name}`, {found['date'][:10]}, commit {found['commit'][:9]}, {where}, {versions}."
    )


def curves_of(figures: Mapping[str, Any], field: str) -> dict[str, Points]:
    """(share, mean, low, high) by policy, starting at plain reuse."""
    start = (0.0, *figures["reuse.r0"][field])
    found: dict[str, list[tuple[float, ...]]] = {}
    for name, entry in figures.items():
        if isinstance(entry, dict) and not name.startswith(("reuse.", "everything.")):
            arm, share = name.split(".r", 1)
            found.setdefault(arm, [start]).append((float(share) / 100, *entry[field]))
    return found  # type: ignore[return-value]


def cells_table(
    figures: Mapping[str, Any], field: str, scale: float, digits: int, anchor: str = "conduit"
) -> list[str]:
    """Policies by budget: mean, and behind it where the paired 95 % interval against `anchor` excludes zero, + or -."""
    shares = sorted({name.split(".r", 1)[1] for name in figures if ".r" in name}, key=float)
    shares = [s for s in shares if s not in ("0", "100")]
    rows = [["reuse", *[f"{scale * figures['reuse.r0'][field][0]:.{digits}f}"] * len(shares)]]
    for arm in dict.fromkeys(name.split(".r", 1)[0] for name in figures if ".r" in name):
        if arm not in ("reuse", "everything"):
            cells = [_cell(figures.get(f"{arm}.r{share}"), field, scale, digits, anchor) for share in shares]
            rows.append([arm, *cells])
    return table(["policy", *(f"r = {share} %" for share in shares)], rows)


def _cell(entry: Mapping[str, Any] | None, field: str, scale: float, digits: int, anchor: str) -> str:
    if entry is None:
        return "not tried"
    spent = f" (of {100 * entry['mean_share']:.1f} %)" if "mean_share" in entry else ""
    return f"{scale * entry[field][0]:.{digits}f}{_mark(entry, field, anchor)}{spent}"


def _mark(entry: Mapping[str, Any], field: str, anchor: str) -> str:
    against = entry.get(f"{field}_minus_{anchor}")
    if against is None or against[1] <= 0 <= against[2]:
        return ""
    return " +" if against[1] > 0 else " -"


def accuracy_section(found: Result) -> list[str]:
    figures = found["figures"]
    rows = [[name, percent(entry["accuracy"])] for name, entry in figures.items() if isinstance(entry, dict)]
    kinds = list(figures["full.r100"]["by_kind"])
    wanted = ("full.r100", "reuse.r0", "conduit.r5", "conduit.r10", "conduit.r20", "random.r10")
    by_kind = [[k, *(f"{100 * figures[c]['by_kind'][k]:.1f}" for c in wanted)] for k in kinds]
    text = [f"Whole answers, word for word, n = {figures['n']}, accuracy in % with 95 % intervals.", ""]
    return [*text, *table(["cell", "accuracy"], rows), *table(["kind", *wanted], by_kind)]


def sweep_section(found: Result, *, name: str, field: str, results: Path) -> list[str]:
    """One table and one curve a set."""
    accuracy = field == "accuracy"
    label = "accuracy of the first word" if accuracy else "KL to full prefill, nats"
    lines = []
    for kind, figures in found["figures"].items():
        file = f"{name}_{kind}.svg"
        full = figures["full_accuracy"][0] if accuracy else 0.0
        draw_curves(results / file, f"{kind}, n = {figures['n']}", label, curves_of(figures, field), full)
        ends = f", full prefill {percent(figures['full_accuracy'])} %" if accuracy else ""
        unit = ", %" if accuracy else ""
        lines += [f"### {kind}", "", f"n = {figures['n']}{ends}. {label[0].upper()}{label[1:]}{unit}.", ""]
        lines += cells_table(figures, field, 100 if accuracy else 1, 1 if accuracy else 3)
        lines += [f"![{kind}]({file})", ""]
    return lines


def verdict_section(found: Result, duel: Result | None) -> list[str]:
    """`impact` against `conduit` by the rule for changing the default: at equal budget nowhere more than half a point
    worse (paired 95 % interval), and better on at least two sets. Sets of `duel` take the place of `found`'s."""
    better, doubtful, rows = set(), [], []
    for kind, figures in (found["figures"] | (duel["figures"] if duel else {})).items():
        for name, entry in figures.items():
            if not name.startswith("impact.r"):
                continue
            mean, low, high = (100 * x for x in entry["accuracy_minus_conduit"])
            if low > 0:
                better.add(kind)
            if low < -WORST_POINTS:
                doubtful.append(f"{kind} at {name.removeprefix('impact.')}")
            if (mean, low, high) != (0, 0, 0):
                rows.append(
                    [kind, str(figures["n"]), name.removeprefix("impact.r"), _points(mean, low, high)]
                )
    met = len(better) >= 2 and not doubtful
    lines = [
        "Accuracy of `impact` minus `conduit`, percentage points, paired 95 % interval; cells without any",
        "",
    ]
    lines[0] += " difference are left out."
    lines += table(["set", "n", "r, %", "difference"], rows)
    lines += [f"Better on: {', '.join(sorted(better)) or 'no set'}. ", ""]
    lines += [f"Not shown to be within {WORST_POINTS} points: {', '.join(doubtful) or 'nowhere'}.", ""]
    return [
        *lines,
        f"The rule for changing the default is {'met' if met else 'not met'} by these figures.",
        "",
    ]


def _points(mean: float, low: float, high: float) -> str:
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def ablation_section(found: Result) -> list[str]:
    lines = []
    for kind, figures in found["figures"].items():
        lines += [f"### {kind}", "", f"n = {figures['n']}, accuracy of the first word, %.", ""]
        lines += cells_table(figures, "accuracy", 100, 1)
        lines += details_table(figures["at_r10"])
    lines += ["The paper's image weights (its Table 4, 3B, r = .10, five-set average):", ""]
    lines += table([f"{weight:g}" for weight in LAMBDA_SWEEP], [[f"{v:.2f}" for v in LAMBDA_SWEEP.values()]])
    lines += ["The paper's ablations (its Table 5):", ""]
    return lines + table(
        ["backbone", "CONDUIT", "without image coefficient", "without values"], ABLATION_ROWS
    )


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
    for study, figures in found["figures"].items():
        lines += [f"### {study.replace('_', ' ')}, n = {figures['n']}", ""]
        if study.startswith("chunks"):
            lines += cells_table(figures, "kl", 1, 3, "impact")
        else:
            lines += cells_table(figures, "accuracy", 100, 1, "impact")
    return lines


def residual_section(found: Result) -> list[str]:
    lines = [
        "E(random) / E(rule), all layers together; the larger the better. The paper's row is its Table 11.",
        "",
    ]
    ratios = found["ratios"]
    shares = ("5", "10", "20", "30", "50")
    for kind, figures in found["figures"].items():
        rows = []
        for form in ("transplant", "refresh"):
            for rule in ("attention", "attention_x_values", "conduit"):
                cells = [f"{ratios[f'{kind}.{form}.{rule}.r{s}.over_random']:.2f}" for s in shares]
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
    return lines + table(["paper", *(f"r = {s} %" for s in shares)], RESIDUAL_ROWS)


def published_section(found: Result) -> list[str]:
    lines = []
    for name, entry in found["figures"].items():
        rows = [[c, f"{values[entry['headline']]:.2f}"] for c, values in entry["cells"].items()]
        lines += [f"### {name}, n = {entry['n']}", "", *table(["cell", entry["headline"]], rows)]
    return lines


def paper_section() -> list[str]:
    head = ["backbone", "full", "reuse", "MPIC", "CacheBlend", "KVShare", "ProphetKV", "CONDUIT r = .10"]
    return ["Five-set averages of the paper (arXiv 2609.05821), for comparison:", "", *table(head, FIVE_SETS)]


def page(found: Mapping[str, Result], results: Path) -> str:
    """The whole report; sections of results that are missing say so."""
    sweep = partial(sweep_section, results=results)
    sections: dict[str, tuple[str, Callable[[Result], list[str]]]] = {
        "accuracy": ("The shipped model, whole answers", accuracy_section),
        "shifted_prefix": ("Shifted prefixes, all policies", partial(sweep, name="pages", field="accuracy")),
        "ablations": ("Ablations", ablation_section),
        "own_rule": ("What was tried for a rule of our own", own_rule_section),
        "residual": ("Residual error of the query rows", residual_section),
        "smollm2_judge": (
            "A second judge: SmolLM2-135M on text chunks",
            partial(sweep, name="smollm2", field="kl"),
        ),
        "published": ("Public sets", published_section),
    }
    lines = ["# Quality at a refresh budget", "", "Generated by `python -m eval.report`; do not edit.", ""]
    lines += ["`+` and `-` mark cells whose paired 95 % interval against `conduit` excludes zero.", ""]
    for name, (title, section) in sections.items():
        lines += [f"## {title}", ""]
        if name in found:
            lines += [provenance(name, found[name]), "", *section(found[name])]
        else:
            lines += [f"Not measured here. `python -m eval.{name}` measures it.", ""]
    if "shifted_prefix" in found:
        lines += [
            "## Our rule against CONDUIT's",
            "",
            *verdict_section(found["shifted_prefix"], found.get("duel")),
        ]
    return "\n".join([*lines, *paper_section()]).rstrip() + "\n"


def main() -> int:
    found = {n: json.loads(f.read_text()) for n in SCRIPTS if (f := RESULTS / f"{n}.json").exists()}
    if not found:
        print("nothing was measured yet")
        return 1
    (RESULTS / "report.md").write_text(page(found, RESULTS))
    print(RESULTS / "report.md")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
