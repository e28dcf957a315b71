"""What the pass of a layer-wise policy shows that policy: deviations, and T10 of the validation plan for KVShare."""

from __future__ import annotations

import pytest
import torch

from engine.policies.cacheblend import CacheBlend
from engine.policies.kvshare import KVShare
from tests.contract.arms import Watched, ask
from tests.engine.conftest import SHIFTED, Bench
from tests.engine.plain import first_layer_weights, up_to


@torch.no_grad()
def test_old_is_what_was_stored_and_new_what_was_computed(bench: Bench) -> None:
    watched = Watched(CacheBlend())
    asked = ask(bench, SHIFTED, watched)
    stored, _ = asked.restored(watched, 0.5)
    prefill, found = asked.restored(watched, 0.5)
    prefill.shrink(found, watched, 0.5)
    layers = range(bench.family.shape.layers - 1)
    assert len(watched.shown) == len(layers)
    for layer, probe, slots in zip(layers, watched.shown, watched.active(found.slots, 0.5, 3), strict=False):
        assert torch.equal(probe.old_keys, stored.kv.keys[layer][:, slots])
        assert torch.equal(probe.old_values, stored.kv.values[layer][:, slots])
        assert torch.equal(probe.new_keys, prefill.kv.keys[layer][:, slots])
        assert torch.equal(probe.new_values, prefill.kv.values[layer][:, slots])
        # Layer 0 sees no context: there nothing deviates.
        assert torch.allclose(probe.new_keys, probe.old_keys, atol=1e-4) == (layer == 0)


@torch.no_grad()
@pytest.mark.parametrize("rows_at_a_time", [7, 10_000])
def test_T10_mass_is_the_mean_of_plain_attention_over_all_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int
) -> None:
    monkeypatch.setattr("engine.passes.layerwise.WEIGHT_ROWS", rows_at_a_time)
    watched = Watched(KVShare())
    asked = ask(bench, SHIFTED, watched)
    prefill, found = asked.restored(watched, 0.3)
    prefill.shrink(found, watched, 0.3)
    every = torch.arange(asked.layout.length)
    weights = first_layer_weights(prefill, every, up_to(every, asked.layout.length))
    assert torch.allclose(watched.shown[0].mass, weights.mean((0, 1))[found.slots], atol=1e-6)
