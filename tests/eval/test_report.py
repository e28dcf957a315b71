"""The report and the merged figures, from results of the shape that the evaluations write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.result import NotMeasured
from demo.questions import KINDS
from eval.arms import ARMS, cell
from eval.quality import gather
from eval.report import page, percent
from eval.residual import RATIOS, RULES, ratios_of

HEAD = {
    "machine": {"cpu": "a CPU", "cores": 2, "accelerator": None, "torch": "2", "transformers": "5"},
    "commit": "0123456789abcdef",
    "date": "2026-11-29T18:00:00+00:00",
    "settings": {},
}


def entry(accuracy: float, difference: float | None = None) -> dict[str, list[float]]:
    found = {
        "accuracy": [accuracy, accuracy - 0.01, accuracy + 0.01],
        "agreement": [accuracy] * 3,
        "kl": [1 - accuracy] * 3,
    }
    if difference is not None:
        found["accuracy_minus_conduit"] = [difference, difference - 0.01, difference + 0.01]
        found["kl_minus_conduit"] = [-difference, -difference - 0.01, -difference + 0.01]
    return found


@pytest.fixture
def swept() -> dict[str, Any]:
    cells = {cell(arm.name, r): entry(0.5 + r, 0.1) for arm in ARMS for r in (0.05, 0.1)}
    cells["conduit.r10"] = entry(0.61)
    del cells["kvshare.r5"]
    figures = {"n": 9, "full_accuracy": [0.9, 0.88, 0.92], "reuse.r0": entry(0.2), **cells}
    return HEAD | {"figures": {"two_hop": figures}, "ratios": {"two_hop.conduit.r10": 0.61 / 0.9}}


def test_page_shows_what_was_measured_and_names_what_was_not(swept: dict[str, Any], tmp_path: Path) -> None:
    text = page({"shifted_prefix": swept}, tmp_path)
    assert "| conduit | 55.0 + | 61.0 |" in text and "| impact | 55.0 + | 60.0 + |" in text
    assert "| kvshare | not tried | 60.0 + |" in text
    assert "n = 9, full prefill 90.0 [88.0, 92.0] %" in text
    assert "Not measured here. `python -m eval.residual` measures it." in text
    assert "![two_hop](pages_two_hop.svg)" in text and "a CPU, 2 cores" in text
    assert "| two_hop | 9 | 5 | +10.00 [+9.00, +11.00] |" in text and "is not met by these figures" in text
    drawn = (tmp_path / "pages_two_hop.svg").read_bytes()
    page({"shifted_prefix": swept}, tmp_path)
    assert (tmp_path / "pages_two_hop.svg").read_bytes() == drawn


def test_many_more_prompts_settle_a_doubt(swept: dict[str, Any], tmp_path: Path) -> None:
    doubted = {"n": 9, "full_accuracy": [0.9] * 3, "reuse.r0": entry(0.2), "impact.r10": entry(0.6, 0.0)}
    both = swept | {
        "figures": swept["figures"] | {"page_order": swept["figures"]["two_hop"], "system": doubted}
    }
    text = page({"shifted_prefix": both}, tmp_path)
    assert "within 0.5 points: system at r10" in text and "is not met by these figures" in text
    settled = {"n": 900, "impact.r10": entry(0.6) | {"accuracy_minus_conduit": [0.0, -0.004, 0.004]}}
    text = page({"shifted_prefix": both, "duel": HEAD | {"figures": {"system": settled}}}, tmp_path)
    assert "| system | 900 | 10 | +0.00 [-0.40, +0.40] |" in text and "is met by these figures" in text


def test_all_sections(swept: dict[str, Any], tmp_path: Path) -> None:
    by_kind = {"accuracy": [0.9, 0.8, 1.0], "by_kind": dict.fromkeys(KINDS, 0.9)}
    names = ("full.r100", "reuse.r0", "conduit.r5", "conduit.r10", "conduit.r20", "random.r10")
    accuracy = HEAD | {"figures": {"n": 9, **dict.fromkeys(names, by_kind)}, "ratios": {}}
    rows = {
        n: {f"{rule}.r{100 * r:g}": [[0, 2.0], [0, 1.0 + n]] for rule in RULES for r in RATIOS}
        for n in range(2)
    }
    found = ratios_of(rows)
    ratios = {f"two_hop.{name}": value["all"] for name, value in found.items()}
    residual = HEAD | {
        "figures": {"two_hop": {"n": 2, "rank_correlation_by_layer": [0.5, 0.9], **found}},
        "ratios": ratios,
    }
    public = HEAD | {"figures": {"pope": {"n": 3, "headline": "f1", "cells": {"full.r100": {"f1": 50.0}}}}}
    details = {"n": 2, "conduit": {"overlap": 1.0, "e2": 1.0, "flops": 1.0}}
    details |= {"stage1_all_text_refresh_tail": {"overlap": 0.5, "e2": None, "flops": 1.25}}
    looked_into = {"figures": {"two_hop": swept["figures"]["two_hop"] | {"at_r10": details}}}
    spent = entry(0.4) | {"mean_share": 0.031, "accuracy_minus_impact": [-0.2, -0.3, -0.1]}
    tried = HEAD | {
        "figures": {"page_order_template": swept["figures"]["two_hop"] | {"adaptive_50.r10": spent}}
    }
    everything = {
        "accuracy": accuracy,
        "shifted_prefix": swept,
        "ablations": swept | looked_into,
        "own_rule": tried,
        "residual": residual,
        "smollm2_judge": swept,
        "published": public,
    }
    text = page(everything, tmp_path)
    assert "Not measured" not in text
    assert "| transplant: attention | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert "| stage1_all_text_refresh_tail | 50.0 | - | 1.250 |" in text
    assert "| adaptive_50 | not tried | 40.0 - (of 3.1 %) |" in text
    assert "| full.r100 | 50.00 |" in text and "Qwen2.5-VL-3B | 49.33" in text


def test_gathered_figures(swept: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="shifted_prefix"):
        gather(tmp_path)
    (tmp_path / "shifted_prefix.json").write_text(json.dumps(swept))
    settings, ratios = gather(tmp_path)
    assert ratios == swept["ratios"] and settings["shifted_prefix"]["commit"] == HEAD["commit"]


def test_percent() -> None:
    assert percent([0.5, 0.25, 0.75]) == "50.0 [25.0, 75.0]"
