"""What holds of every refresh policy that goes on from a refreshed chain of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.chains.held import Computed, Match
from engine.chains.outcome import exact_until, fresh_rows, recipe_of
from engine.chains.segments import Content, root_of
from engine.chains.tree import Chains
from engine.messages import Message
from engine.passes.forward import Work
from engine.passes.refresh import Prefill, Prefilled
from engine.policies.base import AnyPolicy, SelectingPolicy
from engine.policies.choice import Choice
from engine.policies.known import make_policy
from engine.prompt.layout import Ints
from tests.contract.arms import ARMS, LAYERWISE, SELECTING, Arm, Asked, Options, ask, named
from tests.engine.conftest import PICTURES, Bench, said, user

pytestmark = pytest.mark.usefixtures("no_grad")

SYSTEM = said("system", "Read them all, slowly.")
BETWEEN = (0, "first page, and now ", 1, 2)
FIRST = [SYSTEM, user(*BETWEEN, "What is K on the red page?")]
QUESTIONS: dict[str, list[Message]] = {
    "the same": FIRST,
    "another": [SYSTEM, user(*BETWEEN, "And where would L be, I wonder?")],
    "a turn more": [*FIRST, said("assistant", "four"), user("And L?")],
}
RATIO = 0.3


def choice(policy: AnyPolicy) -> Choice:
    return Choice(policy, RATIO if policy.fixed_ratio is None else policy.fixed_ratio)


# Policies that leave refreshed chains: `fixed_ratio` ones have their own.
CHAINED: list[Arm] = [
    (name, options)
    for name, options in ARMS
    if name != "random" and recipe_of(choice(make_policy(name, options))) is not None
]


def content(asked: Asked) -> Content:
    digests = tuple(bytes([span.image]) * 32 for span in asked.layout.spans)
    return Content(root_of("", "tenant", b""), "tenant", asked.layout.ids, asked.layout.spans, digests)


def go_on(asked: Asked, match: Match) -> Prefill:
    prefill = asked.prefill()
    return Prefill(prefill.family, prefill.kv, asked.layout, asked.features, Work(), match)


def keep(chains: Chains, asked: Asked, chosen: Choice, prefill: Prefill, done: Prefilled) -> None:
    exact = exact_until(asked.layout, prefill.match, done.computed, ())
    fresh = fresh_rows(asked.layout, prefill.match, done.computed)
    computed = Computed(prefill.kv.keys, prefill.kv.values, exact, fresh)
    chains.keep(content(asked), computed, recipe_of(chosen), chains.epoch)


def chained(bench: Bench, policy: AnyPolicy, question: str) -> tuple[Asked, Match, Choice]:
    """The question, and what it finds behind the first one."""
    chosen, chains = choice(policy), Chains(1 << 26)
    first = ask(bench, FIRST, policy)
    prefill = first.prefill()
    keep(chains, first, chosen, prefill, prefill.reuse(first.entries, policy, chosen.ratio))
    asked = ask(bench, QUESTIONS[question], policy)
    match = chains.find(content(asked), asked.layout.length - 1, recipe_of(chosen))
    chains.release(match)
    return asked, match, chosen


def own_share(asked: Asked, policy: SelectingPolicy, ratio: float) -> Ints:
    """What the question alone has computed: the visual tokens it takes, and the text."""
    prefill = asked.prefill()
    taken = prefill.choose(prefill.restore(asked.entries, policy, ratio), policy, ratio)
    text = asked.layout.text_slots() if policy.refresh_text else asked.layout.tail()
    return np.union1d(taken, text)


@named(CHAINED)
@pytest.mark.parametrize("question", QUESTIONS)
def test_promise_2_with_a_refreshed_chain_every_row_that_would_have_been_fresh_is_fresh(
    bench: Bench, name: str, options: Options, question: str
) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    asked, match, chosen = chained(bench, policy, question)
    given = match.given(asked.layout.length)
    alone = own_share(asked, policy, chosen.ratio)
    prefill = go_on(asked, match)
    done = prefill.reuse(asked.entries, policy, chosen.ratio)
    assert match.length >= asked.layout.spans[-1].stop
    # Computed is the share that the question alone would take, but what the chain has of it, and nothing else.
    assert done.computed.tolist() == alone[~given[alone]].tolist()
    # What the chain had is still there.
    keys, values = prefill.kv.keys.clone(), prefill.kv.values.clone()
    match.write_head(keys, values)
    match.write_rest(keys, values)
    assert torch.equal(keys, prefill.kv.keys) and torch.equal(values, prefill.kv.values)


@named(CHAINED)
def test_the_same_question_again_computes_nothing_but_its_last_row(
    bench: Bench, name: str, options: Options
) -> None:
    policy = make_policy(name, options)
    asked, match, chosen = chained(bench, policy, "the same")
    done = go_on(asked, match).reuse(asked.entries, policy, chosen.ratio)
    assert done.computed.tolist() == [asked.layout.length - 1]
    assert sum(done.refreshed) == 0
    first = asked.prefill().reuse(asked.entries, policy, chosen.ratio)
    assert torch.allclose(done.logits, first.logits, atol=1e-4)


@named(CHAINED)
def test_many_questions_bring_a_refreshed_chain_ever_closer_to_full_prefill(
    bench: Bench, name: str, options: Options
) -> None:
    """Rows never get staler, and what a chain holds is what the requests before have computed."""
    policy = make_policy(name, options)
    chosen, chains, fresh = choice(policy), Chains(1 << 26), np.zeros(0, dtype=bool)
    for question in ("What is K?", "And L, and M?", "Where?", "Say all of the green page."):
        asked = ask(bench, [SYSTEM, user(*BETWEEN, question)], policy)
        match = chains.find(content(asked), asked.layout.length - 1, recipe_of(chosen))
        given = match.given(asked.layout.length)[: asked.layout.spans[-1].stop]
        assert given[: len(fresh)][fresh].all() and given.sum() == fresh.sum()
        prefill = go_on(asked, match)
        done = prefill.reuse(asked.entries, policy, chosen.ratio)
        chains.release(match)
        keep(chains, asked, chosen, prefill, done)
        fresh = fresh_rows(asked.layout, match, done.computed)[: asked.layout.spans[-1].stop]


@named(LAYERWISE)
def test_rows_that_are_fresh_in_some_layers_only_leave_no_refreshed_chain(
    bench: Bench, name: str, options: Options
) -> None:
    asked, match, _ = chained(bench, make_policy(name, options), "another")
    assert not match.rest
    assert match.exact == asked.layout.spans[0].start


@pytest.mark.parametrize("name", sorted({name for name, _ in SELECTING}))
@pytest.mark.parametrize("correction", ["shift", "ridge"])
def test_rows_that_a_correction_moves_leave_no_refreshed_chain(
    bench: Bench, name: str, correction: str
) -> None:
    asked, match, _ = chained(bench, make_policy(name, {"correction": correction}), "another")
    assert not match.rest
    assert match.exact == asked.layout.spans[0].start


def test_a_recipe_is_policy_options_and_ratio() -> None:
    plain = make_policy("conduit", {})
    recipes = [
        recipe_of(Choice(plain, 0.1)),
        recipe_of(Choice(plain, 0.2)),
        recipe_of(Choice(make_policy("conduit", {"min_per_image": 1}), 0.1)),
        recipe_of(Choice(make_policy("prophetkv", {}), 0.1)),
    ]
    assert len(set(recipes)) == len(recipes) and None not in recipes
    assert recipe_of(Choice(make_policy("conduit", {}), 0.1)) == recipes[0]
    assert recipe_of(Choice(plain, 1.0)) is None
    assert recipe_of(Choice(make_policy("full", {}), 1.0)) is None


@named([arm for arm in ARMS if make_policy(*arm).fixed_ratio is None])
def test_r_1_leaves_an_exact_chain(bench: Bench, name: str, options: Options) -> None:
    """But the text that the paper's preset leaves as it was before the images behind it."""
    policy = make_policy(name, options)
    asked = ask(bench, FIRST, policy)
    prefill = asked.prefill()
    done = prefill.reuse(asked.entries, policy, 1.0)
    exact = exact_until(asked.layout, prefill.match, done.computed, ())
    assert exact == (asked.layout.length if policy.refresh_text else asked.layout.spans[0].stop)
    full = asked.prefill()
    full.full()
    assert torch.allclose(prefill.kv.keys[:, :, :exact], full.kv.keys[:, :, :exact], atol=1e-4)
    assert torch.allclose(prefill.kv.values[:, :, :exact], full.kv.values[:, :, :exact], atol=1e-4)


@named(ARMS)
def test_an_exact_chain_gives_full_prefill_s_logits(bench: Bench, name: str, options: Options) -> None:
    """For every policy, with whatever follows: fp32 within 1e-4."""
    policy, full = make_policy(name, options), Choice(make_policy("full", {}), 1.0)
    chains, first = Chains(1 << 26), ask(bench, FIRST, policy)
    prefill = first.prefill()
    keep(chains, first, full, prefill, prefill.full())
    for messages in QUESTIONS.values():
        asked = ask(bench, messages, policy)
        match = chains.find(content(asked), asked.layout.length - 1, recipe_of(choice(policy)))
        chains.release(match)
        assert match.exact >= asked.layout.spans[-1].stop and not match.rest
        entries = [None] * len(asked.entries)
        go = Prefill(bench.family, asked.prefill().kv, asked.layout, entries, Work(), match)
        done = go.reuse(entries, policy, choice(policy).ratio)
        assert (done.logits - asked.prefill().full().logits).abs().max() <= 1e-4
        assert done.exact == (True, True, True) and done.refreshed == (0, 0, 0)


@named([arm for arm in ARMS if make_policy(*arm).uses_store])
def test_what_follows_an_exact_head_is_refreshed_as_any_prompt(
    bench: Bench, name: str, options: Options
) -> None:
    """One image more than the chain has: it alone is left to choose from, and the head stays as it is."""
    policy, full = make_policy(name, options), Choice(make_policy("full", {}), 1.0)
    chains, first = Chains(1 << 26), ask(bench, [SYSTEM, user(0, 1, "K?")], policy, PICTURES[:2])
    first_prefill = first.prefill()
    keep(chains, first, full, first_prefill, first_prefill.full())
    asked = ask(bench, [SYSTEM, user(0, 1, 2, "What is K?")], policy)
    match = chains.find(content(asked), asked.layout.length - 1, None)
    chains.release(match)
    assert asked.layout.spans[1].stop <= match.exact <= asked.layout.spans[2].start
    features = [None, None, asked.features[2]]
    prefill = Prefill(bench.family, asked.prefill().kv, asked.layout, features, Work(), match)
    done = prefill.reuse([None, None, asked.entries[2]], policy, choice(policy).ratio)
    assert done.refreshed[:2] == (0, 0) and done.exact == (True, True, False)
    head = slice(0, match.exact)
    assert torch.allclose(prefill.kv.keys[:, :, head], first_prefill.kv.keys[:, :, head], atol=1e-5)
    assert torch.isfinite(done.logits).all()
    assert done.computed.min() >= match.exact
