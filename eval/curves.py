"""Budget-quality curves as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
# The same figures give the same file.
matplotlib.rcParams["svg.hashsalt"] = "conduit"

from matplotlib import pyplot  # noqa: E402

Points = Sequence[tuple[float, float, float, float]]

# The rules that a query drives are drawn through, the others dashed; controls are gray.
QUERY_DRIVEN = ("conduit", "conduit_paper", "conduit_no_image", "impact", "prophetkv")
CONTROLS = ("random", "wrong_query", "reuse")


def draw_curves(file: Path, title: str, label: str, curves: Mapping[str, Points], full: float | None) -> None:
    """`curves` by policy: (share refreshed, mean, low, high) in order; `full` is drawn as a line across."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.4))
    for name, points in curves.items():
        shares, means, lows, highs = zip(*points, strict=True)
        style = "-" if name in QUERY_DRIVEN else ":" if name in CONTROLS else "--"
        color = "0.55" if name in CONTROLS else None
        (line,) = axes.plot(
            [100 * s for s in shares], means, style, color=color, marker="o", ms=3, label=name
        )
        axes.fill_between([100 * s for s in shares], lows, highs, color=line.get_color(), alpha=0.12, lw=0)
    if full is not None:
        axes.axhline(full, color="0.3", lw=0.8)
    axes.set_xscale("symlog", linthresh=2)
    axes.set_xticks([0, 2, 5, 10, 20, 50], ["0", "2", "5", "10", "20", "50"])
    axes.set_xlabel("visual tokens refreshed, %")
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
