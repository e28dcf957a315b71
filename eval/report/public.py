"""Public sets in the form of the paper's Tables 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eval.paper import FIVE_SETS, MULTI_IMAGE, SINGLE_IMAGE, beside
from eval.report.tables import Result, compact, table


def published_section(found: Result) -> list[str]:
    """In the form of the paper's Tables 1 and 2, whose figures set by set stand at the end of the report."""
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
