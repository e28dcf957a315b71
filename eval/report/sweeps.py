"""Sets of questions at every budget: their tables and curves, and what they show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.pages import CELLS
from engine.policies.first_k import Epic, Mpic
from engine.policies.shrinking import linear_counts
from eval.curves import Points, draw_curves
from eval.page_prompts import SHIPPED
from eval.report.tables import FIELDS, Result, cells_table, differences, percent, shares_of, table, with_width
from eval.statistics import beyond_chance

QUERY_RULES = ("conduit_no_image", "prophetkv", "impact")
LINEAR_ARMS = ("cacheblend", "kvshare")
TRAINED_FOR_IT = (
    "The page reader is a friendly judge of rules that ask: in its training the attention of question rows to the asked"
    " cell was supervised, in a few heads of two layers ([its card](../../models/page-reader/README.md)). How far such"
    " rules carry on a model that nobody trained for them is the second judge's to say."
)


def sweep_section(found: Result, *, name: str, fields: Sequence[str], results: Path) -> list[str]:
    """A set's tables, the first field's open, and its curve."""
    lines = []
    first, *others = fields
    sets = found["figures"].values()
    for kind, figures in found["figures"].items():
        file = f"{name}_{kind}.svg"
        full = figures["full_accuracy"][0] if first == "accuracy" else 0.0
        title = f"{kind}, n = {figures['n']}"
        draw_curves(
            results / file, title, FIELDS[first][0].removesuffix(", %"), curves_of(figures, first), full
        )
        ends = (
            f", full prefill {percent(with_width(figures['full_accuracy'], figures['n']))} %"
            if first == "accuracy"
            else ""
        )
        lines += [f"### {kind}", "", f"n = {figures['n']}{ends}. {FIELDS[first][0]}.", ""]
        lines += cells_table(figures, first, differences(sets, first))
        for field in others:
            lines += [f"<details><summary>{FIELDS[field][0]}</summary>", ""]
            lines += [*cells_table(figures, field, differences(sets, field)), "</details>", ""]
        lines += [f"![{kind}]({file})", ""]
    return lines


def curves_of(figures: Mapping[str, Any], field: str) -> dict[str, Points]:
    """(share, mean, low, high) by policy, starting at plain reuse."""
    start = (0.0, *figures["reuse.r0"][field])
    found: dict[str, list[tuple[float, ...]]] = {}
    for name, entry in figures.items():
        if isinstance(entry, dict) and not name.startswith(("reuse.", "everything.")):
            arm, share = name.split(".r", 1)
            found.setdefault(arm, [start]).append((float(share) / 100, *entry[field]))
    return found  # type: ignore[return-value]


def pages_section(found: Result, *, results: Path) -> list[str]:
    tables = sweep_section(found, name="pages", fields=("accuracy", "agreement", "kl"), results=results)
    layers = int(json.loads((SHIPPED / "config.json").read_text())["text_config"]["num_hidden_layers"])
    return [
        *tables,
        "### What the tables show",
        "",
        TRAINED_FOR_IT,
        "",
        *order_notes(found),
        *linear_notes(found, layers),
        fixed_note(),
        "",
    ]


def chunks_section(found: Result, *, results: Path) -> list[str]:
    tables = sweep_section(found, name="smollm2", fields=("kl", "agreement"), results=results)
    return [*tables, *wrong_query_notes(found)]


def long_chunks_section(found: Result) -> list[str]:
    (figures,) = found["figures"].values()
    looks = differences([figures], "kl")
    rows = [
        [name, *(f"{x:+.3f}" for x in entry["kl_minus_uncorrected"])]
        for name, entry in figures.items()
        if isinstance(entry, dict) and "kl_minus_uncorrected" in entry
    ]
    return [
        f"Four chunks of about 60 tokens, n = {figures['n']}. {FIELDS['kl'][0]}.",
        "",
        *cells_table(figures, "kl", looks),
        "What a correction changes at the same rule and budget, nats, paired 95 % interval:",
        "",
        *table(["cell", "KL", "low", "high"], rows),
    ]


def wrong_query_notes(found: Result) -> list[str]:
    """What a question that nobody asked is worth on a model that was not trained to look where it is asked."""
    lines = []
    for prefix, figures in found["figures"].items():
        shares = [s for s in shares_of(figures) if "kl_minus_conduit" in figures.get(f"wrong_query.r{s}", {})]
        against = [figures[f"wrong_query.r{share}"]["kl_minus_conduit"] for share in shares]
        if against:
            said = ", ".join(
                f"{mean:+.3f} [{low:+.3f}, {high:+.3f}] at r = {share} %"
                for share, (mean, low, high) in zip(shares, against, strict=True)
            )
            lines += [
                f"Behind the prefix `{prefix}` the next prompt's question (`wrong_query`) chooses with this KL more"
                f" (+) or less (-) than the own question (`conduit`): {said} nats. Where these intervals hold zero, the"
                " rule's gain over chance on this model is what any question finds, not what this one asks for.",
                "",
            ]
    return lines


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
    looks = differences(found["figures"].values(), "accuracy")
    for kind, figures in found["figures"].items():
        shares = []
        for share in shares_of(figures):
            against = figures.get(f"{arm}.r{share}", {}).get("accuracy_minus_conduit", (0, 0, 0))
            if beyond_chance(against, looks) == sign:
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
