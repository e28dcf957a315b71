"""The report and the merged figures, from results of the shape that the evaluations write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.result import NotMeasured
from demo.questions import KINDS
from engine.policies.base import SelectingPolicy
from eval.arms import ARMS, cell
from eval.curves import CONTROLS, QUERY_DRIVEN
from eval.paper import MULTI_IMAGE
from eval.quality import gather
from eval.report.page import page
from eval.report.tables import percent
from eval.residual import RATIOS, RULES, ratios_of
from tests.engine.conftest import Bench

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
    assert (
        "| conduit | 55.0 ±1.0 + | 61.0 ±1.0 |" in text and "| impact | 55.0 ±1.0 + | 60.0 ±1.0 + |" in text
    )
    assert "| kvshare | not tried | 60.0 ±1.0 + |" in text
    assert "| conduit | 55.0 ±0.0 | 61.0 ±0.0 |" in text and "| conduit | 0.450 ±0.000 - |" in text
    assert "n = 9, full prefill 90.0 [88.0, 92.0] %" in text
    assert "Not measured here. `python -m eval.residual` measures it." in text
    assert "![two_hop](pages_two_hop.svg)" in text and "a CPU, 2 cores" in text
    assert "| two_hop | 9 | 5 | +10.00 [+9.00, +11.00] |" in text and "is not met by these figures" in text
    drawn = (tmp_path / "pages_two_hop.svg").read_bytes()
    page({"shifted_prefix": swept}, tmp_path)
    assert (tmp_path / "pages_two_hop.svg").read_bytes() == drawn


def test_words_follow_the_figures(swept: dict[str, Any], tmp_path: Path) -> None:
    two_hop = swept["figures"]["two_hop"]
    two_hop["prophetkv.r5"] = entry(0.5, -0.2)
    two_hop["impact.r5"] = two_hop["impact.r10"] = entry(0.5, 0.005)
    text = page({"shifted_prefix": swept}, tmp_path)
    assert "`conduit_no_image` is above `conduit` on two_hop (r = 5, 10 %), below it on no set" in text
    assert "`prophetkv` is above `conduit` on two_hop (r = 10 %), below it on two_hop (r = 5 %)" in text
    assert (
        "`impact` is above `conduit` on no set, below it on no set" in text
        and "does not know its place" in text
    )
    # Reuse is .2; cacheblend's .55 and .6, kvshare's .6.
    assert (
        "`cacheblend` and `kvshare` are at most 40.0 points from plain reuse on any set up to r = 10 %"
        in text
    )
    assert "they refresh 89 % and 44 % whatever r says" in text
    for name in list(two_hop):
        if name.startswith(("conduit_no_image", "prophetkv", "impact", "cacheblend", "kvshare")):
            del two_hop[name]
    text = page({"shifted_prefix": swept}, tmp_path)
    assert "does not know its place" not in text and "points from plain reuse" not in text


def looked(accuracy: float, difference: float | None, overlap: float, ink: float) -> dict[str, Any]:
    found: dict[str, Any] = entry(accuracy) | {"overlap": overlap, "ink": ink}
    if difference is not None:
        found["accuracy_minus_random_ink"] = [difference, difference - 0.01, difference + 0.01]
    return found


@pytest.fixture
def controls() -> dict[str, Any]:
    figures = {"n": 9, "full_accuracy": [1.0] * 3, "filled": 0.22, "reuse.r0": entry(0.2)}
    figures |= {
        "conduit.r5": looked(0.9, 0.4, 1.0, 0.99),
        "wrong_query.r5": looked(0.5, 0.0, 0.3, 0.97),
        "unrelated.r5": looked(0.4, -0.1, 0.2, 0.96),
        "random_ink.r5": looked(0.5, None, 0.25, 1.0),
        "random.r5": looked(0.1, -0.4, 0.05, 0.22),
        "everything.r100": entry(1.0),
    }
    return HEAD | {"figures": {"two_hop": figures}}


def test_controls_tell_a_question_from_chance(controls: dict[str, Any], tmp_path: Path) -> None:
    text = page({"controls": controls}, tmp_path)
    assert "Only 22 % of the candidates" in text
    assert "`wrong_query` (the next prompt's question) is above it in 0 and below it in 0 of 1 cells" in text
    assert "`unrelated` (a question in plain English) above it in 0 and below it in 1 of 1 cells" in text
    assert "`conduit` above it in 1 and below it in 0 of 1 cells" in text
    assert "| wrong_query | 50 | 97 | 30 |" in text and "| everything |" not in text
    assert "| random | 10.0 ±1.0 - |" in text and "| random_ink | 50.0 ±1.0 |" in text


def public_set(headline: str, value: float, half: float) -> dict[str, Any]:
    return {
        "n": 3,
        "headline": headline,
        "cells": {"full.r100": {headline: value}, "first_k.r5": {headline: 0.0}},
        "intervals": {"full.r100": [value, value - half, value + half], "first_k.r5": None},
    }


def test_public_sets_beside_the_paper(tmp_path: Path) -> None:
    sets = {name: public_set("score", 40.0 + 5 * i, 1.0) for i, name in enumerate(MULTI_IMAGE)}
    found = HEAD | {"settings": {"model": "a-model", "dtype": "float32"}}
    text = page({"published": found | {"figures": sets | {"pope": public_set("f1", 50.0, 2.0)}}}, tmp_path)
    # The errors of five sets: sqrt(5) / 5 of one.
    assert "| 60.00 ±1.00 | 50.00 ±0.45 | 49.60 | 60.53 | 56.96 |" in text
    assert "| first_k.r5 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | not at hand | not at hand |" in text
    assert "| full.r100 | 50.00 ±2.00 |" in text and "not at hand" in text
    assert "| Qwen2.5-VL-3B | prophetkv.r10 | 54.35 | 32.25 | 68.52 | 42.30 | 40.36 | 47.56 |" in text
    assert "| Qwen2.5-VL-7B | conduit_paper.r10 | not at hand |" in text
    del sets["viquae"]
    assert "not all five measured" in page({"published": found | {"figures": sets}}, tmp_path)


def test_a_default_must_be_shown_to_lose_nowhere(swept: dict[str, Any], tmp_path: Path) -> None:
    both = swept | {"figures": swept["figures"] | {"page_order": swept["figures"]["two_hop"]}}
    assert "is met by these figures" in page({"shifted_prefix": both}, tmp_path)
    judge = {"n": 300, "full_accuracy": [0.9] * 3, "reuse.r0": entry(0.2), "impact.r10": entry(0.6, 0.0)}
    judge["wrong_query.r10"] = entry(0.6) | {"kl_minus_conduit": [-0.0001, -0.007, 0.006]}
    text = page({"shifted_prefix": both, "smollm2_judge": HEAD | {"figures": {"template": judge}}}, tmp_path)
    assert "the own question (`conduit`): -0.000 [-0.007, +0.006] at r = 10 % nats" in text
    assert "attention of question rows to the asked cell was supervised" in text
    assert "| smollm2 template | 300 | 10 | +0.00 [-1.00, +1.00] |" in text
    assert "within 0.5 points: smollm2 template at r10" in text and "is not met by these figures" in text


def test_all_sections(swept: dict[str, Any], controls: dict[str, Any], tmp_path: Path) -> None:
    by_kind = {"accuracy": [0.9, 0.8, 1.0], "by_kind": dict.fromkeys(KINDS, 0.9)}
    names = ("full.r100", "reuse.r0", "conduit.r5", "conduit.r10", "conduit.r20", "random.r10")
    accuracy = HEAD | {"figures": {"n": 9, **dict.fromkeys(names, by_kind)}, "ratios": {}}
    rows = {
        n: {
            f"{rule}.r{100 * r:g}": [[0, 6.0 if rule == "random" else 2.0], [0, 1.0 + n]]
            for rule in RULES
            for r in RATIOS
        }
        for n in range(2)
    }
    found = ratios_of(rows)
    ratios = {f"two_hop.{name}": value["all"] for name, value in found.items()}
    residual = HEAD | {
        "figures": {"two_hop": {"n": 2, "rank_correlation_by_layer": [0.5, 0.9], **found}},
        "ratios": ratios,
    }
    public = HEAD | {
        "figures": {"pope": public_set("f1", 50.0, 2.0)},
        "settings": {"model": "a-model", "dtype": "float32"},
    }
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
        "controls": controls,
        "ablations": swept | looked_into,
        "own_rule": tried,
        "residual": residual,
        "smollm2_judge": swept,
        "published": public,
        "long_chunks": swept,
    }
    swept["figures"]["two_hop"]["conduit.r10"]["kl_minus_uncorrected"] = [-0.04, -0.07, -0.01]
    text = page(everything, tmp_path)
    assert "| conduit.r10 | -0.040 | -0.070 | -0.010 |" in text
    assert "Not measured" not in text
    assert "| transplant: attention | 3.00 \\| 1.00 | 3.00 \\| 1.00 |" in text
    assert "is 1.0 to 3.0 / 1.0 to 3.0 / 1.0 to 3.0 / 1.0 to 3.0 / 1.0 to 3.0 here and 1.0 to 1.1" in text
    assert "| stage1_all_text_refresh_tail | 50.0 | - | 1.250 |" in text
    assert "| adaptive_50 | not tried | 40.0 ±1.0 - (of 3.1 %) |" in text
    assert "| paper, Qwen2.5-VL-3B | 48.53 | 48.84 | 49.30 | 49.23 | 49.33 |" in text
    assert "| ours, two_hop | not tried | not tried | not tried | not tried | 61.0 ±1.0 |" in text
    assert "| paper, InternVL3-9B | 55.97 | 55.43 | 55.44 |" in text


def test_gathered_figures(swept: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="shifted_prefix"):
        gather(tmp_path)
    (tmp_path / "shifted_prefix.json").write_text(json.dumps(swept))
    settings, ratios = gather(tmp_path)
    assert ratios == swept["ratios"] and settings["shifted_prefix"]["commit"] == HEAD["commit"]


def test_percent() -> None:
    assert percent([0.5, 0.25, 0.75]) == "50.0 [25.0, 75.0]"


def test_curves_know_every_query_driven_arm(bench: Bench) -> None:
    made = {arm.name: arm.make(0) for arm in ARMS}
    asked = {
        name
        for name, policy in made.items()
        if isinstance(policy, SelectingPolicy) and policy.plan(bench.family.shape, 2)
    }
    assert set(QUERY_DRIVEN) == {name for name in asked if made[name].question is None}
    assert set(CONTROLS) <= made.keys() | {"reuse"}
