"""Whether our rule may become the default."""

from __future__ import annotations

from eval.report.tables import Result, table

# Percentage points that a new default may at most be worse by.
WORST_POINTS = 0.5


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
