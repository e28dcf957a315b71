"""Another family than the shipped model's through the whole service: HTTP, worker, store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_families import write_random_family
from demo.questions import make_example
from tests.e2e.live import Live, tiers, tokens


@pytest.mark.parametrize(
    "architecture", ["InternVLForConditionalGeneration", "SmolVLMForConditionalGeneration"]
)
def test_promise_2_holds_for_a_family_with_text_inside_its_images(architecture: str, tmp_path: Path) -> None:
    model = write_random_family(tmp_path / "model", architecture)
    example = make_example(np.random.default_rng(3), "system", 2)
    with Live(tmp_path / "store", model) as live:
        cold = live.ask(example, chain="off")
        warm = live.ask(example, chain="off")
        full = live.ask(example, policy="full", chain="off")
        whole = live.ask(example, refresh_ratio=1.0, chain="off")
        live.flush()
        live.restart()
        later = live.ask(example, chain="off")
    assert {outcome for outcome, _ in tiers(cold)} == {"miss"}
    assert {outcome for outcome, _ in tiers(warm) | tiers(later)} == {"hit"}
    assert tokens(cold) == tokens(warm) == tokens(later)
    assert tokens(full) == tokens(whole)
    visual = cold.report["visual_tokens"]
    assert warm.report["reused_tokens"] + warm.report["refreshed_tokens"] == visual
