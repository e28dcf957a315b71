"""The closed formula against what the engine counts as it runs."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import cost_model
from engine.passes.compile import compile_image
from engine.passes.forward import Work
from engine.prompt.layout import PromptLayout
from tests.engine.conftest import PICTURES, SHIFTED, Bench, bench, tiny_path, user

__all__ = ["bench", "tiny_path"]


@pytest.fixture
def layout(bench: Bench) -> PromptLayout:
    return bench.layout(SHIFTED, PICTURES)


def test_full_prefill_is_counted_exactly(bench: Bench, layout: PromptLayout) -> None:
    prefill, _ = bench.full(layout, PICTURES)
    assert prefill.work.flops == cost_model.full(bench.family.shape, layout.length)


def test_a_compile_is_counted_exactly(bench: Bench) -> None:
    picture, prefix, work = PICTURES[0], bench.prompt.prefix_ids, Work()
    shape = bench.family.span(picture.shape[1], picture.shape[0])
    compile_image(bench.family, bench.pool, prefix, bench.family.encode(picture), shape, work)
    assert work.flops == cost_model.compiling(bench.family.shape, len(prefix), [shape.tokens])


def test_reuse_is_counted_exactly(bench: Bench, layout: PromptLayout) -> None:
    prefill, _ = bench.reuse(layout, PICTURES, 0.0, policy="reuse")
    assert prefill.work.flops == cost_model.refresh(bench.family.shape, layout, [0, 0, 0])


@pytest.mark.parametrize("ratio", [0.1, 0.3])
def test_a_refresh_is_within_5_percent(bench: Bench, layout: PromptLayout, ratio: float) -> None:
    """Not exactly: where in an image the chosen tokens stand is not part of the formula."""
    prefill, found = bench.reuse(layout, PICTURES, ratio)
    shape = bench.family.shape
    formula = cost_model.scoring(shape, layout, shape.score_layers)
    formula += cost_model.refresh(shape, layout, found.refreshed)
    assert prefill.work.flops == pytest.approx(formula, rel=0.05)


def test_trimming_the_last_layer_saves_less_than_a_layer(bench: Bench) -> None:
    layout = bench.layout([user(0, "What is K?")], PICTURES[:1])
    shape, rows = bench.family.shape, layout.length
    whole = cost_model.untrimmed(shape, rows, rows * (rows + 1) / 2)
    assert whole * (shape.layers - 1) / shape.layers < cost_model.full(shape, rows) < whole
    assert np.isfinite(whole)
