"""What every refresh policy keeps, whatever it chooses: T1, T2, T9, T11, T12, T14 and T15 of the validation plan, for
all there are (`arms.py`); what holds of the choice itself is in `test_policy_choices.py`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from engine.errors import UnknownPolicy
from engine.policies.base import AnyPolicy, SelectingPolicy
from engine.policies.known import POLICIES, make_policy
from engine.prompt.layout import Ints
from store.records.entry import ImageKV
from tests.contract.arms import WITH_RATIO, Asked, Options, Watched, ask, ask_fully, named
from tests.engine.conftest import PICTURES, SHIFTED, Bench, said, user
from tests.engine.plain import run_plainly

pytestmark = pytest.mark.usefixtures("no_grad")


@named(WITH_RATIO)
def test_T1_everything_refreshed_is_full_prefill(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    asked = ask_fully(bench, policy)
    prefill, found = asked.run(policy, 1.0)
    full = asked.prefill()
    assert torch.allclose(found.logits, full.full().logits, atol=1e-4)
    length = asked.layout.length
    assert torch.allclose(prefill.kv.keys[:, :, :length], full.kv.keys[:, :, :length], atol=1e-4)
    assert torch.allclose(prefill.kv.values[:, :, :length], full.kv.values[:, :, :length], atol=1e-4)
    assert sum(found.refreshed) == asked.layout.visual_tokens


@named(WITH_RATIO)
def test_T2_nothing_refreshed_is_plain_reuse(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    _, found = asked.run(policy, 0.0)
    assert torch.allclose(found.logits, asked.run(make_policy("reuse", {}), 0.0)[1].logits, atol=1e-5)
    assert sum(found.refreshed) == 0


@named(WITH_RATIO)
def test_T9_canonical_first_image_is_kept(bench: Bench, name: str, options: Options) -> None:
    """It is no candidate, its stored bits stay, and they are what full prefill computes. Only the released arms treat
    it like any other."""
    policy = make_policy(name, options)
    asked = ask(bench, [user(0, 1, "What is K?")], policy, PICTURES[:2])
    prefill, found = asked.run(policy, 0.3)
    full, (stored, _) = asked.prefill(), asked.restored(policy, 0.3)
    full.full()
    span = asked.layout.spans[0]
    kept, exact, computed = (
        torch.stack((kv.keys, kv.values))[:, :, :, span.start : span.stop]
        for kv in (prefill.kv, stored.kv, full.kv)
    )
    assert torch.allclose(kept, computed, atol=1e-5)
    if not policy.keeps_exact:
        assert found.exact == (False, False)
    else:
        assert found.exact == (True, False) and found.refreshed[0] == 0 < found.refreshed[1]
        assert torch.equal(kept, exact)


@named(WITH_RATIO)
def test_T12_stored_entries_are_only_read(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    before = [tuple(t.clone() for t in _tensors(entry)) for entry in asked.entries]
    asked.run(policy, 0.3)
    for entry, copies in zip(asked.entries, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(_tensors(entry), copies, strict=True))


def _tensors(entry: ImageKV) -> tuple[torch.Tensor, ...]:
    return entry.keys, entry.values, entry.features, entry.value_norms


@named(WITH_RATIO)
def test_T11_same_request_gives_the_same_bits(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, SHIFTED, policy)
    assert torch.equal(asked.run(policy, 0.3)[1].logits, asked.run(policy, 0.3)[1].logits)


EDGES = {
    "text between images": SHIFTED,
    "no text between images": [said("system", "x"), user(0, 1, 2, "What is K?")],
    "image last": [said("system", "x"), user("K", 0, 1, 2)],
    "one-token question": [said("system", "x"), user(0, 1, 2, "K")],
    "question first": [said("system", "x"), user("What is K?", 0, "and", 1, 2)],
    "two turns": [said("system", "x"), user(0, 1, "K?"), said("assistant", "four"), user(2, "And L?")],
}


@named(WITH_RATIO)
@pytest.mark.parametrize("edge", EDGES)
def test_T14_every_shape_of_prompt_equals_a_plain_pass(
    bench: Bench, name: str, options: Options, edge: str
) -> None:
    """The same logits and the same KV as the chosen rows give layer by layer without anything that saves time."""
    policy = make_policy(name, options)
    asked = ask(bench, EDGES[edge], policy)
    prefill, found = asked.run(policy, 0.6)
    plain, candidates = asked.restored(policy, 0.6)
    if not policy.refresh_text:
        run_plainly(plain, [asked.layout.text_slots()] * bench.family.shape.layers)
    images = tuple(zip(candidates.spans, candidates.entries, strict=True))
    rows = computed_rows(asked, policy, 0.6)
    logits = run_plainly(plain, rows, images, str(options.get("correction", "none")))
    assert torch.allclose(found.logits, logits, atol=1e-4)
    length = asked.layout.length
    assert torch.allclose(prefill.kv.keys[:, :, :length], plain.kv.keys[:, :, :length], atol=1e-4)
    assert torch.allclose(prefill.kv.values[:, :, :length], plain.kv.values[:, :, :length], atol=1e-4)


def computed_rows(asked: Asked, policy: AnyPolicy, ratio: float) -> list[Ints]:
    """Slots of the rows that each layer computes, by the policy's own choice."""
    prefill, found = asked.restored(policy, ratio)
    layers = prefill.family.shape.layers
    if isinstance(policy, SelectingPolicy):
        text = asked.layout.text_slots() if policy.refresh_text else asked.layout.tail()
        chosen = [prefill.choose(found, policy, ratio)] * layers
    else:
        text, watched = asked.layout.text_slots(), Watched(policy)
        prefill.shrink(found, watched, ratio)
        chosen = watched.active(found.slots, ratio, layers)
    return [np.union1d(text, slots) for slots in chosen]


@named(WITH_RATIO)
def test_T14_no_image_and_only_an_exact_one(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    for messages, pictures in (([user("hello there")], []), ([user(0, "K?")], PICTURES[:1])):
        asked = ask(bench, messages, policy, pictures)
        full = asked.prefill().full().logits
        assert torch.allclose(asked.run(policy, 0.2)[1].logits, full, atol=1e-4)


@named(WITH_RATIO)
def test_T15_all_rows_leave_no_error(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    asked = ask_fully(bench, policy)
    assert asked.error(policy, 1.0) < 1e-3 < asked.error(policy, 0.0)


JUNK = ("", "no such thing", "last_0", "3,2", -1, -0.5, 1e30, math.nan, math.inf, True, None, [1])
FREE_TEXT = {("wrong_query", "text")}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_unknown_options_and_values_are_named(name: str) -> None:
    fields = [field.name for field in dataclasses.fields(POLICIES[name])]  # type: ignore[arg-type]
    with pytest.raises(UnknownPolicy, match=f"no option 'colour'; known are {', '.join(fields) or 'none'}$"):
        make_policy(name, {"colour": 1})
    for field in fields:
        for value in JUNK:
            if isinstance(value, str) and value and (name, field) in FREE_TEXT:
                continue
            with pytest.raises(UnknownPolicy, match=field):
                make_policy(name, {field: value})


def test_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(UnknownPolicy, match=r"conduit, .*reuse"):
        make_policy("best", {})


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_says_what_its_options_do(name: str) -> None:
    kind = POLICIES[name]
    written = " ".join(doc for parent in kind.__mro__ if (doc := parent.__dict__.get("__doc__")))
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        assert f"{field.name}:" in written or f"{field.name} in" in written or f"`{field.name}`" in written
