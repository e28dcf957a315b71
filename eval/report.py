"""One page from the committed results: `python -m eval.report` writes `results/report.md` and its curves.

Reads what the scripts named in `SCRIPTS` have written; what was not run is named as such. Every figure in its text is
taken from there, from the paper (`eval.paper`) or from the policies' own arithmetic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from demo.pages import CELLS
from engine.policies.first_k import Epic, Mpic
from engine.policies.shrinking import linear_counts
from eval.curves import Points, draw_curves
from eval.page_prompts import SHIPPED
from eval.paper import (
    ABLATION_ROWS,
    FIVE_SETS,
    LAMBDA_SWEEP,
    MULTI_IMAGE,
    NOT_AT_HAND,
    RESIDUAL_ROWS,
    SINGLE_IMAGE,
    VALUES_ALONE,
    beside,
)

RESULTS = Path(__file__).parent / "results"
SCRIPTS = (
    "accuracy",
    "shifted_prefix",
    "controls",
    "ablations",
    "own_rule",
    "residual",
    "smollm2_judge",
    "published",
)

# Percentage points that a new default may at most be worse by.
WORST_POINTS = 0.5
# How a field is called, by what its numbers are multiplied, and to how many digits.
FIELDS = {
    "accuracy": ("Accuracy of the first word, %", 100.0, 1),
    "agreement": ("Agreement of the first token with full prefill, %", 100.0, 1),
    "kl": ("KL to full prefill, nats", 1.0, 3),
}
# Our arms that the paper's Tables 4 and 5 speak of.
WEIGHT_ARMS = {0.0: "weight_0", 0.25: "weight_25", 0.5: "weight_50", 0.75: "weight_75", 1.0: "conduit"}
WITHOUT_ARMS = ("conduit", "weight_0", "values_none")
BY_KIND = ("full.r100", "reuse.r0", "conduit.r5", "conduit.r10", "conduit.r20", "impact.r10", "random.r10")
QUERY_RULES = ("conduit_no_image", "prophetkv", "impact")
LINEAR_ARMS = ("cacheblend", "kvshare")

Result = Mapping[str, Any]


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
            cells = [_cell(figures.get(f"{arm}.r{share}"), field, anchor) for share in shares]
            rows.append([arm, *cells])
    return table(["policy", *(f"r = {share} %" for share in shares)], rows)


def _cell(entry: Mapping[str, Any] | None, field: str, anchor: str = "conduit") -> str:
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


def accuracy_section(found: Result) -> list[str]:
    figures = found["figures"]
    rows = [[name, percent(entry["accuracy"])] for name, entry in figures.items() if isinstance(entry, dict)]
    kinds = list(figures["full.r100"]["by_kind"])
    wanted = [name for name in BY_KIND if name in figures]
    by_kind = [[k, *(f"{100 * figures[c]['by_kind'][k]:.1f}" for c in wanted)] for k in kinds]
    text = [f"Whole answers, word for word, n = {figures['n']}, accuracy in % with 95 % intervals.", ""]
    return [*text, *table(["cell", "accuracy"], rows), *table(["kind", *wanted], by_kind)]


def sweep_section(found: Result, *, name: str, fields: Sequence[str], results: Path) -> list[str]:
    """A set's tables, the first field's open, and its curve."""
    lines = []
    first, *others = fields
    for kind, figures in found["figures"].items():
        file = f"{name}_{kind}.svg"
        full = figures["full_accuracy"][0] if first == "accuracy" else 0.0
        title = f"{kind}, n = {figures['n']}"
        draw_curves(
            results / file, title, FIELDS[first][0].removesuffix(", %"), curves_of(figures, first), full
        )
        ends = f", full prefill {percent(figures['full_accuracy'])} %" if first == "accuracy" else ""
        lines += [f"### {kind}", "", f"n = {figures['n']}{ends}. {FIELDS[first][0]}.", ""]
        lines += cells_table(figures, first)
        for field in others:
            lines += [f"<details><summary>{FIELDS[field][0]}</summary>", ""]
            lines += [*cells_table(figures, field), "</details>", ""]
        lines += [f"![{kind}]({file})", ""]
    return lines


def pages_section(found: Result, *, results: Path) -> list[str]:
    tables = sweep_section(found, name="pages", fields=("accuracy", "agreement", "kl"), results=results)
    layers = int(json.loads((SHIPPED / "config.json").read_text())["text_config"]["num_hidden_layers"])
    return [
        *tables,
        "### What the tables show",
        "",
        *order_notes(found),
        *linear_notes(found, layers),
        fixed_note(),
        "",
    ]


def order_notes(found: Result) -> list[str]:
    """Where the order of the query-driven rules is not the paper's, and why."""
    said = []
    for arm in QUERY_RULES:
        above, below = (_sets_where(found, arm, sign) or "no set" for sign in (1, -1))
        said.append(f"`{arm}` is above `conduit` on {above}, below it on {below}")
    text = (
        "In the paper every query-driven rule without the image coefficient is below CONDUIT (its Tables 1"
        f" and 5). Here, by the paired intervals: {'; '.join(said)}."
    )
    if any(_sets_where(found, arm, 1) for arm in QUERY_RULES):
        text += (
            " Why: a stale page was computed alone and does not know its place. Where the answer depends"
            " on the place of a page, every page that holds the asked key draws the query, often a wrong"
            " one most, and the coefficient spends the budget on the page that draws most. Without it, and"
            " more so where such pages are held back (`impact`), the budget reaches the right page too"
            " ([impact](../../docs/policies/impact.md))."
        )
    return [text, ""]


def _sets_where(found: Result, arm: str, sign: int) -> str:
    """`two_hop (r = 5, 10 %)`: where the arm's accuracy is above (sign 1) or below (-1) `conduit`'s."""
    said = []
    for kind, figures in found["figures"].items():
        shares = []
        for share in shares_of(figures):
            against = figures.get(f"{arm}.r{share}", {}).get("accuracy_minus_conduit", (0, 0, 0))
            if min(sign * against[1], sign * against[2]) > 0:
                shares.append(share)
        if shares:
            said.append(f"{kind} (r = {', '.join(shares)} %)")
    return ", ".join(said)


def linear_notes(found: Result, layers: int) -> list[str]:
    """Why the arms with a linear schedule are plain reuse at small budgets."""
    small = {
        share
        for figures in found["figures"].values()
        for share in shares_of(figures)
        if not any(linear_counts(float(share) / 100, CELLS, layers)[2:])
    }
    off = [
        abs(entry["accuracy"][0] - figures["reuse.r0"]["accuracy"][0])
        for figures in found["figures"].values()
        for arm in LINEAR_ARMS
        for share in small
        if (entry := figures.get(f"{arm}.r{share}"))
    ]
    if not off:
        return []
    text = (
        f"`cacheblend` and `kvshare` are at most {100 * max(off):.1f} points from plain reuse on any set up"
        f" to r = {max(small, key=float)} %. Their schedule, as in CONDUIT's code, computes all tokens at"
        f" layer 0 and then linearly fewer, so that the mean over the layers is r. With {layers} layers all"
        f" tokens at layer 0 alone are a mean of {100 / layers:.1f} %: below that r nothing else is"
        " computed, and a little above it a few tokens of layer 1. But layer 0's keys and values hold no"
        " context: what is computed there is what is stored, and its deviation, by which tokens stay for"
        " layer 1, is zero or rounding. A model of many layers has a lower floor. `cacheblend_original`"
        " computes all tokens at layers 0 and 1 whatever r is, which is more than other rules spend at the"
        " same r."
    )
    return [text, ""]


def fixed_note() -> str:
    """Why the arms with a fixed number of tokens are not among those compared."""
    mpic, epic = Mpic().tokens, Epic().tokens
    return (
        f"`mpic` (the first {mpic} tokens of each image) and `epic` (the first {epic}) are left out: of a"
        f" page's {CELLS} tokens they refresh {100 * mpic / CELLS:.0f} % and {100 * epic / CELLS:.0f} %"
        " whatever r says. `first_k`, the same rule at a budget, stands for them."
    )


def controls_section(found: Result) -> list[str]:
    """What makes a wrong question better than chance: means over the sets, a paragraph, and a table a set."""
    sets: Mapping[str, Any] = found["figures"]
    first = next(iter(sets.values()))
    shares = shares_of(first)
    arms = dict.fromkeys(name.split(".r", 1)[0] for name in first if _looked_into(first[name]))

    def mean(arm: str, share: str, field: str) -> str:
        values = [figures[f"{arm}.r{share}"][field] for figures in sets.values()]
        return f"{100 * sum(v[0] if field == 'accuracy' else v for v in values) / len(values):.0f}"

    fields = {"accuracy": "right", "ink": "filled cells", "overlap": "in common with the own question's"}
    rows = [[arm, *(" / ".join(mean(arm, s, field) for s in shares) for field in fields)] for arm in arms]
    lines = [
        _controls_found(sets, shares),
        "",
        f"Means over the sets at r = {' / '.join(shares)} %, in %: right first words, and among the chosen"
        " tokens filled cells and those that the own question chooses too.",
        "",
        *table(["policy", *fields.values()], rows),
        "In the tables by set `+` and `-` compare with `random_ink`.",
        "",
    ]
    for kind, figures in sets.items():
        lines += [f"### {kind}, n = {figures['n']}", "", *cells_table(figures, "accuracy", "random_ink")]
    return lines


def _controls_found(sets: Mapping[str, Any], shares: Sequence[str]) -> str:
    def cells(arm: str) -> str:
        against = [
            figures[f"{arm}.r{share}"]["accuracy_minus_random_ink"]
            for figures in sets.values()
            for share in shares
        ]
        above, below = (sum(min(sign * low, sign * high) > 0 for _, low, high in against) for sign in (1, -1))
        return f"above it in {above} and below it in {below} of {len(against)} cells"

    filled = 100 * sum(figures["filled"] for figures in sets.values()) / len(sets)
    return (
        f"Only {filled:.0f} % of the candidates are cells that hold something, and whatever is asked draws"
        " attention to those; `random` mostly draws blank ones. That is why no question falls to chance on"
        " such pages. How far it carries is what `random_ink` shows, which asks nothing and draws filled"
        " cells by lot before blank ones: by the paired intervals `wrong_query` (the next prompt's"
        f" question) is {cells('wrong_query')}, `unrelated` (a question in plain English)"
        f" {cells('unrelated')}, `random` {cells('random')}, and `conduit` {cells('conduit')}, which is"
        " what the own question adds."
    )


def _looked_into(entry: Any) -> bool:
    return isinstance(entry, dict) and "ink" in entry


def verdict_section(pages: Result, judge: Result | None) -> list[str]:
    """`impact` against `conduit` by the rule for changing the default: at equal budget nowhere more than half a point
    worse (paired 95 % interval), and better on at least two sets, those of the second judge among them."""
    better, doubtful, rows = set(), [], []
    chunks = {f"smollm2 {prefix}": found for prefix, found in judge["figures"].items()} if judge else {}
    for kind, figures in (pages["figures"] | chunks).items():
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
    lines += [f"Better on: {', '.join(sorted(better)) or 'no set'}.", ""]
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
    sets = found["figures"]
    for kind, figures in sets.items():
        lines += [f"### {kind}", "", f"n = {figures['n']}. {FIELDS['accuracy'][0]}.", ""]
        lines += cells_table(figures, "accuracy")
        lines += details_table(figures["at_r10"])
    lines += [
        "### Beside the paper's Tables 4 and 5",
        "",
        "r = .10, ours in % of first words that are right.",
        "",
    ]

    def ours(arms: Iterable[str]) -> list[list[str]]:
        return [
            [f"ours, {kind}", *(_cell(figures.get(f"{arm}.r10"), "accuracy") for arm in arms)]
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
    for study, figures in found["figures"].items():
        lines += [f"### {study.replace('_', ' ')}, n = {figures['n']}", ""]
        if study.startswith("chunks"):
            lines += cells_table(figures, "kl", "impact")
        else:
            lines += cells_table(figures, "accuracy", "impact")
    return lines


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


def published_section(found: Result) -> list[str]:
    """In the form of the paper's Tables 1 and 2."""
    figures = found["figures"]
    asked = found["settings"]
    lines = [
        f"Model {asked['model']}, {asked['dtype']}; every set by its own score, with 95 % intervals.",
        "",
    ]
    several, single = ([name for name in names if name in figures] for names in (MULTI_IMAGE, SINGLE_IMAGE))
    if several:
        rows = [
            [
                name,
                *(_headline(figures[s], name) for s in several),
                _average(figures, name),
                *(beside(backbone, name) for backbone in FIVE_SETS),
            ]
            for name in figures[several[0]]["cells"]
        ]
        rows.append(["paper", *[NOT_AT_HAND] * len(several), *[""] * (1 + len(FIVE_SETS))])
        head = [
            *(_titled(figures, s) for s in several),
            "average",
            *(f"paper's average, {b}" for b in FIVE_SETS),
        ]
        lines += ["### Several images", "", *table(["cell", *head], rows)]
    if single:
        rows = [
            [name, *(_headline(figures[s], name) for s in single)] for name in figures[single[0]]["cells"]
        ]
        rows.append(["paper", *[NOT_AT_HAND] * len(single)])
        lines += ["### One image", "", *table(["cell", *(_titled(figures, s) for s in single)], rows)]
    return lines


def _titled(figures: Mapping[str, Any], name: str) -> str:
    return f"{name}, {figures[name]['headline']}, n = {figures[name]['n']}"


def _headline(entry: Mapping[str, Any], name: str) -> str:
    interval = entry["intervals"][name]
    return f"{entry['cells'][name][entry['headline']]:.2f}" if interval is None else compact(interval, 1, 2)


def _average(figures: Mapping[str, Any], name: str) -> str:
    """The mean over the five sets; their errors are independent."""
    if not set(MULTI_IMAGE) <= figures.keys():
        return "not all five measured"
    entries = [figures[s] for s in MULTI_IMAGE]
    mean = sum(entry["cells"][name][entry["headline"]] for entry in entries) / len(entries)
    intervals = [entry["intervals"][name] for entry in entries]
    if None in intervals:
        return f"{mean:.2f}"
    error = math.hypot(*(high - value for value, _, high in intervals)) / len(entries)
    return f"{mean:.2f} ±{error:.2f}"


def paper_section() -> list[str]:
    cells = dict.fromkeys(name for averages in FIVE_SETS.values() for name in averages)
    rows = [[name, *(beside(backbone, name) for backbone in FIVE_SETS)] for name in cells]
    lines = [
        "The paper's five-set averages (arXiv 2609.05821, Table 1), for comparison; its figures set by set and"
        f" those of the single-image sets (Table 2) are {NOT_AT_HAND}:",
        "",
    ]
    return [*lines, *table(["cell", *FIVE_SETS], rows)]


def page(found: Mapping[str, Result], results: Path) -> str:
    """The whole report; sections of results that are missing say so."""
    sections: dict[str, tuple[str, Callable[[Result], list[str]]]] = {
        "accuracy": ("The shipped model, whole answers", accuracy_section),
        "shifted_prefix": ("Shifted prefixes, all policies", partial(pages_section, results=results)),
        "controls": ("Why a wrong question is better than chance", controls_section),
        "ablations": ("Ablations", ablation_section),
        "own_rule": ("What was tried for a rule of our own", own_rule_section),
        "residual": ("Residual error of the query rows", residual_section),
        "smollm2_judge": (
            "A second judge: SmolLM2-135M on text chunks",
            partial(sweep_section, name="smollm2", fields=("kl", "agreement"), results=results),
        ),
        "published": ("Public sets", published_section),
    }
    lines = ["# Quality at a refresh budget", "", "Generated by `python -m eval.report`; do not edit.", ""]
    lines += [
        "± is the longer half of the 95 % interval. `+` and `-` mark cells above and below `conduit` whose"
        " paired 95 % interval excludes zero (of KL, less is better).",
        "",
    ]
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
            *verdict_section(found["shifted_prefix"], found.get("smollm2_judge")),
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
