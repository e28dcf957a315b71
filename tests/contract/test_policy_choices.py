"""What holds of every refresh policy's choice: T5, T6, T8, T11 and T15 of the validation plan, for all there are."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch

from engine.passes.refresh import Prefill
from engine.policies.base import EMPTY, AnyPolicy, LayerwisePolicy, Probe, SelectingPolicy, budget
from engine.policies.known import POLICIES, make_policy
from tests.contract.arms import (
    BY_RATIO,
    LAYERWISE,
    SELECTING,
    WITH_RATIO,
    Arm,
    Asked,
    Options,
    Watched,
    ask,
    named,
)
from tests.engine.conftest import PICTURES, SHIFTED, Bench, picture

pytestmark = pytest.mark.usefixtures("no_grad")

# Layer 0 attends as it does whatever the values are, so there scores are proportional to them.
SCORING: list[Arm] = [
    (name, {**options, "score_layers": "0"})
    for name, options in SELECTING
    if hasattr(POLICIES[name], "score_layers")
]


@named(SCORING)
@pytest.mark.parametrize("factor", [2.0**-12, 2.0**12])
def test_T5_scaled_values_change_no_choice(bench: Bench, name: str, options: Options, factor: float) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    asked = ask(bench, SHIFTED, policy)
    scaled = [
        dataclasses.replace(entry, values=entry.values * factor, value_norms=entry.value_norms * factor)
        for entry in asked.entries
    ]
    chosen = []
    for entries in (asked.entries, scaled):
        prefill = asked.prefill()
        chosen.append(prefill.choose(prefill.restore(entries, policy, 0.3), policy, 0.3).tolist())
    assert chosen[0] == chosen[1]


@named(WITH_RATIO)
def test_T6_later_slots_have_no_say_in_earlier_rows(bench: Bench, name: str, options: Options) -> None:
    """With what the policy chose, rows before the last image stay the same bits when that image and its stored KV are
    others. The answer does not."""
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy, [*PICTURES[:2], picture(4, 196, 196)])
    last = asked.entries[-1]
    changed = dataclasses.replace(last, keys=last.keys + 5, values=last.values - 5)
    first, logits, choice = _refreshed(asked, policy)
    features = [*asked.features[:-1], asked.features[-1] + 1]
    asked = dataclasses.replace(asked, features=features, entries=[*asked.entries[:-1], changed])
    again, others, _ = _refreshed(asked, policy, choice)
    before = asked.layout.spans[-1].start
    assert torch.equal(first.kv.keys[:, :, :before], again.kv.keys[:, :, :before])
    assert torch.equal(first.kv.values[:, :, :before], again.kv.values[:, :, :before])
    assert not torch.allclose(logits, others, atol=1e-3)


def _refreshed(asked: Asked, policy: AnyPolicy, again: Any = None) -> tuple[Prefill, torch.Tensor, Any]:
    """A request at r = 0.6, its logits, and what the policy chose: the slots, or what it said layer by layer. What
    was chosen before takes the place of its choice where it is given as `again`."""
    prefill, found = asked.restored(policy, 0.6)
    if isinstance(policy, LayerwisePolicy):
        watched = Watched(policy, again)
        return prefill, prefill.shrink(found, watched, 0.6).logits, watched.said
    chosen = prefill.choose(found, policy, 0.6)
    chosen = chosen if again is None else again
    return prefill, prefill.refresh(found, chosen, policy.refresh_text).logits, chosen


@named(SELECTING)
@pytest.mark.parametrize(("ratio", "count"), [(1e-9, 1), (0.05, 3), (0.1, 6), (0.5, 30), (0.99, 60)])
def test_T8_chosen_tokens_are_the_budget(name: str, options: Options, ratio: float, count: int) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    image = torch.tensor([0] * 7 + [1] * 40 + [2] * 13)
    draw = torch.Generator().manual_seed(3)
    mass, norms, contribution = torch.rand(3, 3, 60, generator=draw)
    probe = Probe(mass, norms, image, contribution, torch.rand(60, generator=draw))
    chosen = policy.select(probe, budget(ratio, 60)).tolist()
    assert len(chosen) == count
    assert chosen == sorted(set(chosen)) and chosen[0] >= 0 and chosen[-1] < 60
    assert policy.select(probe, budget(ratio, 60)).tolist() == chosen


def test_T8_budget_is_the_ceiling_of_whole_percents() -> None:
    for percent in range(101):
        for candidates in (0, 1, 60, 100, 1000, 12_345):
            assert budget(percent / 100, candidates) == -(-percent * candidates // 100)


@named(LAYERWISE)
@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.3, 0.5, 0.51, 0.8, 0.97])
@pytest.mark.parametrize("layers", [1, 2, 6, 28, 36])
def test_T8_layerwise_counts_never_grow(name: str, options: Options, ratio: float, layers: int) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, LayerwisePolicy)
    counts = policy.counts(ratio, 1000, layers)
    assert len(counts) == layers and counts[0] == 1000
    assert all(above >= below >= 0 for above, below in pairwise(counts))
    assert policy.counts(0.0, 1000, layers) == (0,) * layers
    assert policy.counts(1.0, 1000, layers) == (1000,) * layers
    assert policy.counts(ratio, 0, layers) == (0,) * layers


@named(BY_RATIO)
def test_refreshed_tokens_are_reported(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    layers = bench.family.shape.layers
    _, found = asked.run(policy, 0.4)
    if isinstance(policy, LayerwisePolicy):
        mean = sum(policy.counts(0.4, asked.layout.visual_tokens, layers)) / layers
        assert mean <= sum(found.refreshed) < mean + len(found.refreshed) + 1e-6
    else:
        assert sum(found.refreshed) == budget(0.4, asked.layout.visual_tokens)


@named(SELECTING)
def test_T11_of_equal_scores_the_lower_slot_wins(name: str, options: Options) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    if name == "random":
        pytest.skip("draws by lot")
    flat = torch.ones(2, 12)
    probe = Probe(flat, flat, torch.zeros(12, dtype=torch.long), flat, torch.ones(12))
    assert policy.select(probe, 4).tolist() == [0, 1, 2, 3]


@named([(name, options) for name, options in SELECTING if "correction" not in options])
def test_T15_what_the_policy_selects_is_computed_and_no_other(
    bench: Bench, name: str, options: Options
) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    asked = ask(bench, SHIFTED, policy)
    stored, candidates = asked.restored(policy, 0.3)
    plan, count = policy.plan(bench.family.shape, 3), budget(0.3, len(candidates))
    found = Probe(EMPTY, EMPTY, candidates.image)
    if plan is not None:
        found = stored.prober.probe(candidates, plan, count)
    refreshed, _ = asked.run(policy, 0.3)
    change = (refreshed.kv.keys[-1] - stored.kv.keys[-1])[:, candidates.slots].abs().amax((0, 2))
    computed = torch.nonzero(change > 1e-6).flatten()
    assert computed.tolist() == policy.select(found, count).tolist()


@named(
    [(name, options) for name, options in SELECTING if "correction" in options and "preset" not in options]
)
def test_a_correction_changes_no_choice_and_moves_the_images_of_the_chosen_only(
    bench: Bench, name: str, options: Options
) -> None:
    """At the first layer with context, where every row's own keys and values are the same with and without."""
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    asked = ask(bench, SHIFTED, policy)
    stored, candidates = asked.restored(policy, 0.05)
    chosen = stored.choose(candidates, policy, 0.05)
    plain, _ = asked.run(dataclasses.replace(policy, correction="none"), 0.05)
    moved, _ = asked.run(policy, 0.05)
    told = {span for span in candidates.spans if ((chosen >= span.start) & (chosen < span.stop)).any()}
    for span in candidates.spans:
        others = [slot for slot in range(span.start, span.stop) if slot not in set(chosen.tolist())]
        for one, other in ((plain.kv.keys, moved.kv.keys), (plain.kv.values, moved.kv.values)):
            assert torch.equal(one[0], other[0])
            change = (one[1] - other[1])[:, others].abs().amax((0, 2))
            assert bool((change > 1e-6).all()) == (span in told) and bool((change > 0).any()) == (
                span in told
            )
    assert torch.allclose(plain.kv.keys[1][:, chosen], moved.kv.keys[1][:, chosen], atol=1e-5)


@named(LAYERWISE)
def test_T15_the_most_important_rows_stay_and_no_other(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, LayerwisePolicy)
    asked = ask(bench, SHIFTED, policy)
    stored, candidates = asked.restored(policy, 0.6)
    refreshed, found = asked.restored(policy, 0.6)
    watched = Watched(policy)
    refreshed.shrink(found, watched, 0.6)
    layers = bench.family.shape.layers
    assert watched.said
    # Layer 0 sees no context: what it computes is what was stored.
    for layer, slots in list(enumerate(watched.active(candidates.slots, 0.6, layers)))[1:]:
        change = (refreshed.kv.keys[layer] - stored.kv.keys[layer])[:, candidates.slots].abs().amax((0, 2))
        assert candidates.slots[(change > 1e-6).numpy()].tolist() == slots.tolist()
