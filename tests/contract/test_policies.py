"""What every refresh policy keeps: T1, T2, T6, T8, T9, T11, T12, T14 and T15 of the validation plan, for all there are.

A new policy joins by existing. `VARIANTS` adds option settings that change what a policy does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine.errors import UnknownPolicy
from engine.forward import Work
from engine.layout import PromptLayout
from engine.policies.base import LayerwisePolicy, Policy, Probe, SelectingPolicy, budget
from engine.policies.known import POLICIES, make_policy
from engine.refresh import Prefill, slots_needed
from store.entry import ImageKV
from tests.engine.conftest import PICTURES, SHIFTED, Bench, said, user

VARIANTS: dict[str, tuple[Mapping[str, object], ...]] = {
    "conduit": (
        {"preset": "paper"},
        {"value_mode": "per_head"},
        {"value_mode": "wo"},
        {"score_layers": "0,2", "query_span": "last_2"},
        {"min_per_image": 2, "query_span": "tail"},
    ),
    "cacheblend": ({"variant": "original"}, {"variant": "original", "measure": "keys"}),
    "first_k": ({"spread": "share"},),
}
ARMS = [(name, {}) for name in sorted(POLICIES)] + [
    (name, options) for name, variants in VARIANTS.items() for options in variants
]
WITH_RATIO = [(n, o) for n, o in ARMS if POLICIES[n].fixed_ratio is None]
# MPIC-k and LegoLink-k refresh a fixed number of tokens, whatever the ratio between its ends is.
BY_RATIO = [(n, o) for n, o in WITH_RATIO if not getattr(make_policy(n, o), "tokens", 0)]
LAYERWISE = [(n, o) for n, o in BY_RATIO if issubclass(POLICIES[n], LayerwisePolicy)]
SELECTING = [(n, o) for n, o in BY_RATIO if issubclass(POLICIES[n], SelectingPolicy)]
ONE_IMAGE = [said("system", "Read them all, slowly."), user(0, "What is K?")]

Arm = tuple[str, Mapping[str, object]]


def named(arms: list[Arm]) -> pytest.MarkDecorator:
    ids = [name + "".join(f",{k}={v}" for k, v in options.items()) for name, options in arms]
    return pytest.mark.parametrize(("name", "options"), arms, ids=ids)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@dataclasses.dataclass
class Asked:
    """One prompt with its entries; `run` is a request."""

    bench: Bench
    layout: PromptLayout
    features: list[torch.Tensor]
    entries: list[ImageKV]

    def prefill(self) -> Prefill:
        size = slots_needed(self.layout)
        return Prefill(self.bench.family, self.bench.pool._allocate(size), self.layout, self.features, Work())

    def run(self, policy: Policy, ratio: float) -> tuple[Prefill, torch.Tensor, tuple[int, ...]]:
        prefill = self.prefill()
        found = prefill.reuse(self.entries, policy, ratio)
        return prefill, found.logits, found.refreshed

    def error(self, policy: Policy, ratio: float) -> float:
        """Distance of the last row's logits from full prefill."""
        return float((self.run(policy, ratio)[1] - self.prefill().full().logits).norm())


def ask(bench: Bench, messages: list, policy: Policy, pictures: list[np.ndarray] = PICTURES) -> Asked:
    grids = [bench.family.grid(p.shape[1], p.shape[0]) for p in pictures]
    layout = bench.prompt.layout(messages, grids, policy.question)
    entries = {span.image: bench.entry(pictures[span.image]) for span in layout.spans}
    ordered = [entries[span.image] for span in layout.spans]
    return Asked(bench, layout, [entry.features for entry in ordered], ordered)


def ask_fully(bench: Bench, policy: Policy) -> Asked:
    """A prompt of which r = 1 leaves no stale row: where only the trailing text is computed anew, text between images
    (the tokens around each of them too) stays as the paper's stage 1 left it, so there is one image."""
    if policy.refresh_text:
        return ask(bench, SHIFTED, policy)
    return ask(bench, ONE_IMAGE, policy, PICTURES[:1])


@named(WITH_RATIO)
def test_T1_everything_refreshed_is_full_prefill(
    bench: Bench, name: str, options: Mapping[str, object]
) -> None:
    policy = make_policy(name, options)
    asked = ask_fully(bench, policy)
    prefill, logits, refreshed = asked.run(policy, 1.0)
    full = asked.prefill()
    assert torch.allclose(logits, full.full().logits, atol=1e-4)
    length = asked.layout.length
    assert torch.allclose(prefill.kv.keys[:, :, :length], full.kv.keys[:, :, :length], atol=1e-4)
    assert torch.allclose(prefill.kv.values[:, :, :length], full.kv.values[:, :, :length], atol=1e-4)
    assert sum(refreshed) == asked.layout.visual_tokens


@named(WITH_RATIO)
def test_T2_nothing_refreshed_is_plain_reuse(bench: Bench, name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    _, logits, refreshed = asked.run(policy, 0.0)
    assert torch.allclose(logits, asked.run(make_policy("reuse", {}), 0.0)[1], atol=1e-5)
    assert sum(refreshed) == 0


@named(SELECTING)
@pytest.mark.parametrize("ratio", [1e-9, 0.05, 0.1, 0.5, 0.99])
def test_T8_chosen_tokens_are_the_budget(
    bench: Bench, name: str, options: Mapping[str, object], ratio: float
) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    image = torch.tensor([0] * 7 + [1] * 40 + [2] * 13)
    draw = torch.Generator().manual_seed(3)
    layers = 3
    probe = Probe(
        torch.rand(layers, 60, generator=draw),
        torch.rand(layers, 60, generator=draw),
        image,
        torch.rand(layers, 60, generator=draw),
        torch.rand(60, generator=draw),
    )
    chosen = policy.select(probe, budget(ratio, 60)).tolist()
    assert len(chosen) == math.ceil(round(ratio * 60, 9))
    assert chosen == sorted(set(chosen)) and chosen[0] >= 0 and chosen[-1] < 60
    assert policy.select(probe, budget(ratio, 60)).tolist() == chosen


@named(LAYERWISE)
@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.3, 0.5, 0.51, 0.8, 0.97])
@pytest.mark.parametrize("layers", [1, 2, 6, 28, 36])
def test_T8_layerwise_counts_never_grow(
    name: str, options: Mapping[str, object], ratio: float, layers: int
) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, LayerwisePolicy)
    counts = policy.counts(ratio, 1000, layers)
    assert len(counts) == layers and counts[0] == 1000
    assert all(above >= below >= 0 for above, below in pairwise(counts))
    assert policy.counts(0.0, 1000, layers) == (0,) * layers
    assert policy.counts(1.0, 1000, layers) == (1000,) * layers
    assert policy.counts(ratio, 0, layers) == (0,) * layers


@named(BY_RATIO)
def test_refreshed_tokens_are_reported(bench: Bench, name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    layers = bench.family.shape.layers
    _, _, refreshed = asked.run(policy, 0.4)
    if isinstance(policy, LayerwisePolicy):
        mean = sum(policy.counts(0.4, asked.layout.visual_tokens, layers)) / layers
        assert mean <= sum(refreshed) < mean + len(refreshed) + 1e-6
    else:
        assert sum(refreshed) == budget(0.4, asked.layout.visual_tokens)


@named(WITH_RATIO)
def test_T6_later_slots_have_no_say_in_earlier_rows(
    bench: Bench, name: str, options: Mapping[str, object]
) -> None:
    """Rows before the last image stay the same bits when that image's cached KV changes and the choice does not."""
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    candidates = asked.layout.candidates()
    chosen = candidates[::3]
    changed = dataclasses.replace(
        asked.entries[-1], keys=asked.entries[-1].keys + 5, values=asked.entries[-1].values - 5
    )
    before = asked.layout.spans[-1].start
    kept = []
    for last in (asked.entries[-1], changed):
        prefill = asked.prefill()
        found = prefill.restore([*asked.entries[:-1], last], policy, 0.3)
        if isinstance(policy, LayerwisePolicy):
            # All rows go through layer 0; what its keys and values show does not depend on later slots.
            prefill.shrink(found, _EveryThird(), 0.3)
        else:
            prefill.refresh(found, chosen, True)
        kept.append((prefill.kv.keys[:, :, :before].clone(), prefill.kv.values[:, :, :before].clone()))
    assert torch.equal(kept[0][0], kept[1][0]) and torch.equal(kept[0][1], kept[1][1])


class _EveryThird(LayerwisePolicy):
    """Drops rows by their place alone, so that two passes keep the same ones."""

    def counts(self, ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
        return (candidates, candidates // 3) + (candidates // 9,) * (layers - 2)

    def importance(self, probe: object) -> torch.Tensor:
        active = probe.new_keys.shape[1]  # type: ignore[attr-defined]
        return -(torch.arange(active) % 3).float()


@named(WITH_RATIO)
def test_T9_canonical_first_image_is_kept(bench: Bench, name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, [user(0, 1, "What is K?")], policy, PICTURES[:2])
    prefill, _, refreshed = asked.run(policy, 0.3)
    assert policy.keeps_exact == (refreshed[0] == 0) or not policy.keeps_exact
    full = asked.prefill()
    full.full()
    first = slice(asked.layout.spans[0].start, asked.layout.spans[0].stop)
    assert torch.allclose(prefill.kv.keys[:, :, first], full.kv.keys[:, :, first], atol=1e-5)
    assert torch.allclose(prefill.kv.values[:, :, first], full.kv.values[:, :, first], atol=1e-5)


@named(WITH_RATIO)
def test_T12_stored_entries_are_only_read(bench: Bench, name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    before = [tuple(t.clone() for t in _tensors(entry)) for entry in asked.entries]
    asked.run(policy, 0.3)
    for entry, copies in zip(asked.entries, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(_tensors(entry), copies, strict=True))


def _tensors(entry: ImageKV) -> tuple[torch.Tensor, ...]:
    return entry.keys, entry.values, entry.features, entry.value_norms


@named(WITH_RATIO)
def test_T11_same_request_gives_the_same_bits(bench: Bench, name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    assert torch.equal(asked.run(policy, 0.3)[1], asked.run(policy, 0.3)[1])


@named(SELECTING)
def test_T11_of_equal_scores_the_lower_slot_wins(name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    if name == "random":
        pytest.skip("draws by lot")
    flat = torch.ones(2, 12)
    probe = Probe(flat, flat, torch.zeros(12, dtype=torch.long), flat, torch.ones(12))
    assert policy.select(probe, 4).tolist() == [0, 1, 2, 3]


EDGES = {
    "no text between images": [said("system", "x"), user(0, 1, 2, "What is K?")],
    "image last": [said("system", "x"), user("K", 0, 1, 2)],
    "one-token question": [said("system", "x"), user(0, 1, 2, "K")],
    "question first": [said("system", "x"), user("What is K?", 0, "and", 1, 2)],
    "two turns": [said("system", "x"), user(0, 1, "K?"), said("assistant", "four"), user(2, "And L?")],
}


@named(WITH_RATIO)
@pytest.mark.parametrize("edge", EDGES)
def test_T14_every_shape_of_prompt(bench: Bench, name: str, options: Mapping[str, object], edge: str) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, EDGES[edge], policy)
    _, logits, _ = asked.run(policy, 0.2)
    assert bool(torch.isfinite(logits).all())


@named(WITH_RATIO)
def test_T14_no_image_and_only_an_exact_one(bench: Bench, name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    for messages, pictures in (([user("hello there")], []), ([user(0, "K?")], PICTURES[:1])):
        asked = ask(bench, messages, policy, pictures)
        full = asked.prefill().full().logits
        assert torch.allclose(asked.run(policy, 0.2)[1], full, atol=1e-4)


@named(WITH_RATIO)
def test_T15_all_rows_leave_no_error(bench: Bench, name: str, options: Mapping[str, object]) -> None:
    policy = make_policy(name, options)
    asked = ask_fully(bench, policy)
    assert asked.error(policy, 1.0) < 1e-3 < asked.error(policy, 0.0)


JUNK = ("", "no such thing", "last_0", "3,2", -1, -0.5, 1e30, math.nan, math.inf, True, None, [1])
FREE_TEXT = {("wrong_query", "text")}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_unknown_options_and_values_are_named(name: str) -> None:
    with pytest.raises(UnknownPolicy, match="no option 'colour'"):
        make_policy(name, {"colour": 1})
    for field in dataclasses.fields(POLICIES[name]):  # type: ignore[arg-type]
        for value in JUNK:
            if isinstance(value, str) and value and (name, field.name) in FREE_TEXT:
                continue
            with pytest.raises(UnknownPolicy, match=field.name):
                make_policy(name, {field.name: value})


def test_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(UnknownPolicy, match=r"conduit, .*reuse"):
        make_policy("best", {})


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_says_what_its_options_do(name: str) -> None:
    kind = POLICIES[name]
    written = " ".join(doc for parent in kind.__mro__ if (doc := parent.__dict__.get("__doc__")))
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        assert f"{field.name}:" in written or f"{field.name} in" in written or f"`{field.name}`" in written
