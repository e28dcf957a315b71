"""The fixed and the layer-wise rules, and the controls, against what their papers say."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from engine.policies.base import LayerProbe, Probe, SelectingPolicy
from engine.policies.cacheblend import CacheBlend
from engine.policies.conduit import Conduit
from engine.policies.first_k import Epic, FirstK, Mpic, VLCache
from engine.policies.kvshare import KVShare
from engine.policies.mpic_flat import MpicFlat
from engine.policies.random import Random
from engine.policies.shrinking import linear_counts
from engine.policies.wrong_query import WrongQuery
from tests.engine.conftest import PICTURES, Bench, said, user

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
    """CacheBlend's own code checks at layer 1, the first that sees context."""
    assert CacheBlend(variant="original").counts(0.15, 200, 5) == (200, 200, 30, 30, 30)


def layer(seed: int) -> LayerProbe:
    draw = torch.Generator().manual_seed(seed)
    new_keys, old_keys, new_values, old_values = torch.randn(4, 2, 7, 4, generator=draw)
    return LayerProbe(new_keys, old_keys, new_values, old_values, torch.rand(7, generator=draw))


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
def test_the_wrong_query_never_hears_the_user(bench: Bench) -> None:
    """Whatever was asked, the same tokens are chosen; CONDUIT, whose rule it is, hears the difference."""
    shapes = [bench.family.span(p.shape[1], p.shape[0]) for p in PICTURES]
    entries = [bench.entry(p) for p in PICTURES]

    def chosen(policy: SelectingPolicy, question: str) -> list[int]:
        layout = bench.prompt.layout([said("system", "x"), user(0, 1, 2, question)], shapes, policy.question)
        prefill = bench.prefill(layout, PICTURES)
        return list(prefill.choose(prefill.restore(entries, policy, 0.2), policy, 0.2))

    asked = "What is K on the red page?", "How is the weather today?"
    for wrong in (WrongQuery(), WrongQuery(text="Who wrote it?")):
        assert chosen(wrong, asked[0]) == chosen(wrong, asked[1])
    assert chosen(WrongQuery(), asked[0]) != chosen(WrongQuery(text="Who wrote it?"), asked[0])
    assert chosen(WrongQuery(), asked[0]) == chosen(Conduit(), asked[1]) != chosen(Conduit(), asked[0])
