"""The fixed and the layer-wise rules against what their papers say."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from engine.policies.base import LayerProbe, Probe
from engine.policies.cacheblend import CacheBlend
from engine.policies.first_k import Epic, FirstK, Mpic, VLCache
from engine.policies.known import make_policy
from engine.policies.kvshare import KVShare
from engine.policies.mpic_flat import MpicFlat
from engine.policies.random import Random
from engine.policies.shrinking import fixed_counts, linear_counts
from tests.engine.conftest import PICTURES, SHIFTED, Bench

IMAGES = Probe(torch.empty(0), torch.empty(0), torch.tensor([0] * 4 + [1] * 10 + [2] * 6))


def test_first_tokens_of_every_image() -> None:
    assert FirstK().select(IMAGES, 5).tolist() == [0, 1, 4, 5, 14]
    # an image that has no more gives its part to the others
    assert FirstK().select(IMAGES, 15).tolist() == [0, 1, 2, 3, *range(4, 10), *range(14, 19)]
    assert VLCache().select(IMAGES, 10).tolist() == [0, 1, *range(4, 9), 14, 15, 16]
    assert Mpic(tokens=3).select(IMAGES, 1).tolist() == [0, 1, 2, 4, 5, 6, 14, 15, 16]
    assert (Mpic().tokens, Epic().tokens) == (32, 16)
    assert MpicFlat().select(IMAGES, 6).tolist() == [0, 1, 2, 3, 4, 5]


def test_random_draws_differ_by_seed_only() -> None:
    assert Random(1).select(IMAGES, 6).tolist() == Random(1).select(IMAGES, 6).tolist()
    assert Random(1).select(IMAGES, 6).tolist() != Random(2).select(IMAGES, 6).tolist()


@pytest.mark.parametrize("ratio", [0.04, 0.1, 0.25, 0.5, 0.6, 0.9])
@pytest.mark.parametrize("layers", [6, 28, 36])
def test_linear_schedule_keeps_its_mean(ratio: float, layers: int) -> None:
    counts = linear_counts(ratio, 10_000, layers)
    assert sum(counts) / 10_000 / layers == pytest.approx(max(ratio, 1 / layers), abs=1e-3)
    falls = [a - b for a, b in pairwise(counts) if a < 10_000 and b > 0]
    assert max(falls, default=0) - min(falls, default=0) <= 2


def test_original_schedule_keeps_its_set() -> None:
    assert fixed_counts(0.15, 200, 5, 1) == (200, 200, 30, 30, 30)


def layer(seed: int) -> LayerProbe:
    draw = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(2, 7, 4, generator=draw) for _ in range(4)]
    return LayerProbe(*tensors, mass=torch.rand(7, generator=draw))


def test_deviation_measures() -> None:
    found = layer(1)
    keys = [float((found.new_keys - found.old_keys)[:, t].norm()) for t in range(7)]
    values = [float((found.new_values - found.old_values)[:, t].norm()) for t in range(7)]
    both = [k + v for k, v in zip(keys, values, strict=True)]
    assert CacheBlend().importance(found).tolist() == pytest.approx(both, rel=1e-5)
    assert CacheBlend(variant="original").importance(found).tolist() == pytest.approx(values, rel=1e-5)
    assert CacheBlend(measure="keys").importance(found).tolist() == pytest.approx(keys, rel=1e-5)
    moved = (found.new_values - found.old_values).abs().sum((0, 2)) * found.mass
    assert torch.allclose(KVShare().importance(found), moved)


@torch.no_grad()
@pytest.mark.parametrize("name", ["cacheblend", "kvshare"])
def test_dropped_rows_keep_the_layers_already_done(bench: Bench, name: str) -> None:
    """Nested sets: layer by layer fewer rows differ from the stored KV, and each set lies in the one before."""
    layout = bench.layout(SHIFTED, PICTURES)
    stale, _ = bench.reuse(layout, PICTURES, 0.0)
    mixed, _ = bench.reuse(layout, PICTURES, 0.5, name)
    visual = torch.as_tensor(layout.visual_slots())
    layers = bench.family.shape.layers
    counts = make_policy(name, {}).counts(0.5, len(visual), layers)  # type: ignore[union-attr]
    computed = [(mixed.kv.keys[i] != stale.kv.keys[i]).any(0).any(-1)[visual] for i in range(layers)]
    # layer 0 computes all rows and gets what was stored: it sees no context
    assert torch.allclose(mixed.kv.keys[0], stale.kv.keys[0], atol=1e-5)
    assert [int(c.sum()) for c in computed[1:]] == list(counts[1:])
    for above, below in pairwise(computed[1:]):
        assert not bool((below & ~above).any())


@torch.no_grad()
def test_kvshare_mass_is_the_mean_of_all_rows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of rows or in one go: the same mass, and each row's weights sum to one."""
    import engine.layerwise

    layout = bench.layout(SHIFTED, PICTURES)
    seen: list[list[float]] = []
    for rows in (7, 10_000):
        monkeypatch.setattr(engine.layerwise, "WEIGHT_ROWS", rows)
        _, found = bench.reuse(layout, PICTURES, 0.5, "kvshare")
        seen.append(found.logits.tolist())
    assert seen[0] == pytest.approx(seen[1], abs=1e-5)
