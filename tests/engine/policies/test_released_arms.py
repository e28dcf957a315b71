"""The arms of CONDUIT's released code beside our forms of the same rules: candidates, counts and choices."""

from __future__ import annotations

import math

import pytest
import torch

from engine.families.base import ModelShape
from engine.policies.base import AnyPolicy, Probe, SelectingPolicy
from engine.policies.cacheblend import CacheBlend
from engine.policies.conduit import Conduit
from engine.policies.first_k import VLCache
from engine.policies.known import make_policy
from engine.policies.kvshare import KVShare
from engine.policies.shrinking import linear_counts, released_counts
from tests.contract.arms import ask
from tests.engine.conftest import PICTURES, Bench, user

RELEASED = ("cacheblend", "kvshare", "mpic_flat", "prophetkv", "vlcache")
SHAPE = ModelShape(36, 2048, 11008, 16, 2, 128, 1000)


@torch.no_grad()
@pytest.mark.parametrize("name", RELEASED)
def test_an_exact_first_image_is_a_candidate_of_the_released_arm_only(bench: Bench, name: str) -> None:
    for variant, kept in (("ours", True), ("paper", False)):
        policy = make_policy(name, {"variant": variant})
        asked = ask(bench, [user(0, 1, "What is K?")], policy, PICTURES[:2])
        assert asked.layout.exact == asked.layout.spans[:1]
        _, found = asked.run(policy, 0.6)
        assert found.exact == (kept, False) and (found.refreshed[0] == 0) == kept


@pytest.mark.parametrize(
    ("ratio", "candidates", "layers", "counts"),
    [
        (0.10, 100, 6, (100, 0, 0, 0, 0, 0)),
        (0.20, 100, 6, (100, 20, 0, 0, 0, 0)),
        (0.50, 100, 6, (100, 80, 60, 40, 20, 0)),
        (0.75, 100, 6, (100, 90, 80, 70, 60, 50)),
        (0.90, 100, 6, (100, 96, 92, 88, 84, 80)),
        (0.30, 7, 4, (7, 4, 1, 0)),
        (1.00, 9, 3, (9, 9, 9)),
        (0.00, 9, 3, (0, 0, 0)),
    ],
)
def test_released_counts(ratio: float, candidates: int, layers: int, counts: tuple[int, ...]) -> None:
    assert released_counts(ratio, candidates, layers) == counts
    for policy in (CacheBlend(variant="paper"), KVShare(variant="paper")):
        assert policy.counts(ratio, candidates, layers) == counts
    for policy in (CacheBlend(), KVShare()):
        assert policy.counts(ratio, candidates, layers) == linear_counts(ratio, candidates, layers)


@pytest.mark.parametrize("ratio", [0.03, 0.1, 0.37, 0.5, 0.51, 0.8, 0.99])
@pytest.mark.parametrize("candidates", [1, 35, 288, 9500])
@pytest.mark.parametrize("layers", [6, 28, 36])
def test_released_counts_add_up_exactly(ratio: float, candidates: int, layers: int) -> None:
    asked = layers * math.ceil(round(ratio * candidates, 9))
    assert sum(released_counts(ratio, candidates, layers)) == max(candidates, asked)


def test_vlcache_rounds_up_image_by_image() -> None:
    image = torch.tensor([0] * 4 + [1] * 10 + [2] * 6)
    probe = Probe(torch.empty(0), torch.empty(0), image, ratio=0.3)
    assert VLCache(variant="paper").select(probe, 6).tolist() == [0, 1, 4, 5, 6, 14, 15]
    assert VLCache().select(probe, 6).tolist() == [0, 4, 5, 6, 14, 15]


@torch.no_grad()
@pytest.mark.parametrize("ratio", [0.1, 0.4])
def test_prophetkv_of_the_paper_is_conduit_of_the_paper_without_values_and_images(
    bench: Bench, ratio: float
) -> None:
    released = make_policy("prophetkv", {"variant": "paper"})
    same = Conduit(preset="paper", value_mode="none", image_weight=0.0)
    for images in (1, 4):
        assert plan_of(released, images) == plan_of(same, images)
    asked = ask(bench, [user(0, "and", 1, "What is K?")], released, PICTURES[:2])
    assert torch.equal(asked.run(released, ratio)[1].logits, asked.run(same, ratio)[1].logits)


def plan_of(policy: AnyPolicy, images: int) -> object:
    assert isinstance(policy, SelectingPolicy)
    return policy.plan(SHAPE, images)
