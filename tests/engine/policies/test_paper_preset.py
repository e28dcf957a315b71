"""What `conduit` with preset=paper does otherwise than ours: the first image is a candidate, stage 1's text stays."""

from __future__ import annotations

import math

import numpy as np
import torch

from engine.policies.conduit import Conduit
from tests.engine.conftest import PICTURES, SHIFTED, Bench, user
from tests.engine.plain import run_plainly

PAPER = Conduit(preset="paper")


@torch.no_grad()
def test_the_canonical_first_image_is_counted_and_chosen_from(bench: Bench) -> None:
    layout = bench.layout([user(0, 1, "What is K?")], PICTURES[:2])
    assert layout.exact == layout.spans[:1]
    _, found = bench.reuse(layout, PICTURES[:2], 0.9, preset="paper")
    assert sum(found.refreshed) == math.ceil(0.9 * layout.visual_tokens)
    assert found.refreshed[0] > 0 and found.exact == (False, False)


@torch.no_grad()
def test_text_between_images_stays_as_stage_1_left_it(bench: Bench) -> None:
    """Stage 1: all text rows over the stored images. Only what stands behind the last image is computed once more."""
    layout = bench.layout(SHIFTED, PICTURES)
    mixed, _ = bench.reuse(layout, PICTURES, 0.3, preset="paper")
    entries = [bench.entry(PICTURES[span.image]) for span in layout.spans]
    stage_1 = bench.prefill(layout, PICTURES)
    stage_1.restore(entries, PAPER, 0.3)
    run_plainly(stage_1, [layout.text_slots()] * bench.family.shape.layers)
    text, tail = np.setdiff1d(layout.text_slots(), layout.tail()), layout.tail()
    assert torch.allclose(mixed.kv.keys[:, :, text], stage_1.kv.keys[:, :, text], atol=1e-5)
    assert torch.allclose(mixed.kv.values[:, :, text], stage_1.kv.values[:, :, text], atol=1e-5)
    assert not torch.allclose(mixed.kv.keys[-1][:, tail], stage_1.kv.keys[-1][:, tail], atol=1e-3)
