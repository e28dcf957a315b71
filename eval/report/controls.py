"""What makes a wrong question better than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.report.tables import Result, cells_table, differences, shares_of, table
from eval.statistics import beyond_chance


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
    looks = differences(sets.values(), "accuracy", "random_ink")
    for kind, figures in sets.items():
        lines += [
            f"### {kind}, n = {figures['n']}",
            "",
            *cells_table(figures, "accuracy", looks, "random_ink"),
        ]
    return lines


def _controls_found(sets: Mapping[str, Any], shares: Sequence[str]) -> str:
    looks = differences(sets.values(), "accuracy", "random_ink")

    def cells(arm: str) -> str:
        against = [
            figures[f"{arm}.r{share}"]["accuracy_minus_random_ink"]
            for figures in sets.values()
            for share in shares
        ]
        found = [beyond_chance(difference, looks) for difference in against]
        above, below = found.count(1), found.count(-1)
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
