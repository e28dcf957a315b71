"""What holds of every refresh policy whose prompt reuses texts of another history."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from engine.chains.held import Computed, Match
from engine.chains.outcome import exact_until, fresh_rows, recipe_of
from engine.chains.segments import Content, root_of
from engine.chains.tree import Chains
from engine.messages import Message
from engine.passes.attention import Causal
from engine.passes.forward import Work, run_rows
from engine.passes.refresh import Prefill, Prefilled, slots_of_turns
from engine.policies.base import AnyPolicy, LayerwisePolicy, Policy, SelectingPolicy, budget
from engine.policies.choice import Choice
from engine.policies.known import make_policy
from tests.contract.arms import ARMS, SELECTING, Asked, Options, ask, named
from tests.engine.conftest import Bench, picture, said, user
from tests.engine.plain import turned

pytestmark = pytest.mark.usefixtures("no_grad")

PAGES = [picture(20 + seed, 84, 84) for seed in range(5)]
SYSTEM = said("system", "Read them all, slowly.")
QUESTION = user("What is K on the red page?")
RATIO = 0.3
REUSING = [arm for arm in ARMS if make_policy(*arm).uses_store]


@dataclass(frozen=True)
class History:
    """A page and something about it a turn, then a question."""

    pages: tuple[int, ...]
    system: Message = SYSTEM
    question: Message = QUESTION

    def messages(self) -> list[Message]:
        turns = [
            (user(i, f"This is number {page}, what do you see?"), said("assistant", f"{page} lines."))
            for i, page in enumerate(self.pages)
        ]
        return [self.system, *(message for turn in turns for message in turn), self.question]


@dataclass
class Told(Asked):
    """A history that is asked about."""

    history: History


def tell(bench: Bench, history: History, policy: Policy) -> Told:
    asked = ask(bench, history.messages(), policy, [PAGES[page] for page in history.pages])
    return Told(bench, asked.layout, asked.features, asked.entries, history)


EDITS: dict[str, History] = {
    "the oldest dropped": History((1, 2, 3)),
    "one inserted": History((0, 4, 1, 2, 3)),
    "two swapped": History((1, 0, 2, 3)),
    "another system prompt": History((0, 1, 2, 3), said("system", "It is Monday. Read.")),
}
DROPPED, WHOLE = EDITS["the oldest dropped"], History((0, 1, 2, 3))
CONDUIT, FULL = make_policy("conduit", {}), make_policy("full", {})


def content(asked: Told) -> Content:
    digests = tuple(bytes([page]) * 32 for page in asked.history.pages)
    return Content(root_of("", "tenant", b""), "tenant", asked.layout.ids, asked.layout.spans, digests)


def choice(policy: AnyPolicy, ratio: float = RATIO) -> Choice:
    return Choice(policy, ratio if policy.fixed_ratio is None else policy.fixed_ratio, turns="reuse")


def keep(chains: Chains, asked: Told, chosen: Choice, prefill: Prefill, done: Prefilled) -> None:
    exact = exact_until(asked.layout, prefill.match, done.computed, ())
    fresh = fresh_rows(asked.layout, prefill.match, done.computed, done.turns)
    computed = Computed(prefill.kv.keys, prefill.kv.values, exact, fresh)
    chains.keep(content(asked), computed, recipe_of(chosen), chains.epoch)


def told(bench: Bench) -> Chains:
    """Chains that hold the whole history, computed by full prefill."""
    chains, first = Chains(1 << 26), tell(bench, WHOLE, CONDUIT)
    prefill = first.prefill()
    keep(chains, first, Choice(FULL, 1.0), prefill, prefill.full())
    return chains


def find(chains: Chains, asked: Told, recipe: str | None = None, length: int | None = None) -> Match:
    reach = asked.layout.length - 1 if length is None else length
    match = chains.find(content(asked), reach, recipe)
    match = chains.find_turns(match, content(asked), asked.layout.asked, recipe)
    chains.release(match)
    return match


def go_on(asked: Told, match: Match) -> Prefill:
    return Prefill(asked.bench.family, asked.prefill().kv, asked.layout, asked.features, Work(), match)


def said_at(asked: Told, match: Match) -> list[str]:
    return [
        asked.bench.prompt.tokenizer.decode(asked.layout.ids[turn.start : turn.stop].tolist())
        for turn in match.turns
    ]


@pytest.mark.parametrize("edit", EDITS)
def test_the_run_behind_an_edit_and_the_question_are_computed_and_the_others_found(
    bench: Bench, edit: str
) -> None:
    asked = tell(bench, EDITS[edit], CONDUIT)
    texts = "".join(said_at(asked, find(told(bench), asked)))
    computed = {
        "the oldest dropped": (0, 1),
        "one inserted": (4, 1),
        "two swapped": (0, 1, 2),
        "another system prompt": (0,),
    }[edit]
    for page in range(5):
        present = f"number {page}" in bench.prompt.tokenizer.decode(asked.layout.ids.tolist())
        found = f"number {page}" in texts
        head = edit == "one inserted" and page == 0  # in the exact chain
        assert found == (present and page not in computed and not head), page
    assert "red page" not in texts


def test_at_the_same_place_behind_the_same_prefix_a_text_is_what_would_be_computed(bench: Bench) -> None:
    asked = tell(bench, WHOLE, CONDUIT)
    match = find(told(bench), asked, length=0)
    full, prefill = asked.prefill(), go_on(asked, match)
    full.full()
    prefill.restore(asked.entries, CONDUIT, RATIO)
    slots = slots_of_turns(match)
    assert match.exact == 0 and len(slots) > 30
    assert torch.allclose(prefill.kv.keys[:, :, slots], full.kv.keys[:, :, slots], atol=1e-5)
    assert torch.allclose(prefill.kv.values[:, :, slots], full.kv.values[:, :, slots], atol=1e-5)


@pytest.mark.parametrize("edit", EDITS)
def test_at_another_place_its_keys_are_turned_there(bench: Bench, edit: str) -> None:
    """Against keys that were never rotated to where they stood."""
    first = tell(bench, WHOLE, CONDUIT).prefill()
    unturned = []
    rows = first.rows(np.arange(first.layout.length))
    run_rows(
        bench.family,
        first.kv,
        rows,
        Causal(first.layout.length),
        Work(),
        lambda _, keys, __: unturned.append(keys.clone()),
    )
    asked = tell(bench, EDITS[edit], CONDUIT)
    match = find(told(bench), asked)
    prefill = go_on(asked, match)
    prefill.restore(asked.entries, CONDUIT, RATIO)
    assert match.turns
    for turn in match.turns:
        was = slice(turn.held.segment.start, turn.held.segment.start + turn.tokens)
        now = slice(turn.start, turn.stop)
        expected = turned(torch.stack(unturned)[:, :, was], prefill.prompt_rows.rope.at(now))
        assert torch.allclose(prefill.kv.keys[:, :, now], expected, atol=1e-5)
        assert torch.equal(prefill.kv.values[:, :, now], first.kv.values[:, :, was])


@named([a for a in REUSING if make_policy(*a).fixed_ratio is None and make_policy(*a).refresh_text])
def test_promise_3_r_1_is_full_prefill_with_turns_too(bench: Bench, name: str, options: Options) -> None:
    """But where text between images stays as the paper's stage 1 left it, whatever the ratio."""
    policy = make_policy(name, options)
    asked = tell(bench, EDITS["two swapped"], policy)
    prefill, full = go_on(asked, find(told(bench), asked)), asked.prefill()
    done = prefill.reuse(asked.entries, policy, 1.0)
    assert len(done.turns) == 0
    assert torch.allclose(done.logits, full.full().logits, atol=1e-4)
    length = asked.layout.length
    assert torch.allclose(prefill.kv.keys[:, :, :length], full.kv.keys[:, :, :length], atol=1e-4)


@named([(n, o) for n, o in SELECTING if make_policy(n, o).correction == "none"])
def test_text_rows_compete_with_image_rows_under_one_budget(
    bench: Bench, name: str, options: Options
) -> None:
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    asked = tell(bench, DROPPED, policy)
    match = find(told(bench), asked)
    turns = slots_of_turns(match)
    prefill = go_on(asked, match)
    candidates = prefill.restore(asked.entries, policy, RATIO)
    offered = np.union1d(asked.layout.visual_slots(), turns)
    assert candidates.slots.tolist() == offered.tolist()
    assert len(candidates.image.unique()) == len(candidates.spans) > len(asked.layout.spans)
    stored = prefill.kv.values.clone()
    done = go_on(asked, match).reuse(asked.entries, policy, RATIO)
    taken = np.intersect1d(done.computed, offered)
    assert len(taken) == budget(RATIO, len(offered))
    assert sum(done.refreshed) == len(np.setdiff1d(taken, turns))
    assert done.turns.tolist() == np.setdiff1d(turns, taken).tolist()
    # What was not taken is still what the other history left.
    again = go_on(asked, match)
    again.reuse(asked.entries, policy, RATIO)
    assert torch.equal(again.kv.values[:, :, done.turns], stored[:, :, done.turns])


@named(REUSING)
def test_rows_of_another_history_are_never_called_exact(bench: Bench, name: str, options: Options) -> None:
    policy = make_policy(name, options)
    asked = tell(bench, EDITS["another system prompt"], policy)
    chains = told(bench)
    chosen, prefill = choice(policy), go_on(asked, find(chains, asked))
    done = prefill.reuse(asked.entries, policy, chosen.ratio)
    assert len(done.turns) > 0 and torch.isfinite(done.logits).all()
    assert exact_until(asked.layout, prefill.match, done.computed, ()) <= done.turns[0]
    keep(chains, asked, chosen, prefill, done)
    for recipe in (None, recipe_of(Choice(policy, chosen.ratio))):
        found = chains.find(content(asked), asked.layout.length - 1, recipe)
        chains.release(found)
        # Nothing of it serves whoever computes his turns, but what stands before them.
        assert found.length <= done.turns[0] and not found.rest


@named([arm for arm in REUSING if recipe_of(choice(make_policy(*arm))) is not None])
def test_the_next_question_has_its_own_share_of_stale_text_computed(
    bench: Bench, name: str, options: Options
) -> None:
    """Rows never get staler, and none passes for fresh because a chain holds it."""
    policy = make_policy(name, options)
    assert isinstance(policy, SelectingPolicy)
    chains, chosen = told(bench), choice(policy)
    first = tell(bench, DROPPED, policy)
    before = go_on(first, find(chains, first))
    stale = before.reuse(first.entries, policy, chosen.ratio)
    keep(chains, first, chosen, before, stale)
    asked = tell(bench, replace(DROPPED, question=user("And where would L be?")), policy)
    match = find(chains, asked, recipe_of(chosen))
    assert match.length > asked.layout.spans[-1].stop
    assert not match.given(asked.layout.length)[stale.turns].any()
    prefill = go_on(asked, match)
    alone = go_on(asked, Match((), (), match.turns))
    share = alone.choose(alone.restore(asked.entries, policy, chosen.ratio), policy, chosen.ratio)
    done = prefill.reuse(asked.entries, policy, chosen.ratio)
    given = match.given(asked.layout.length)
    assert np.isin(share[~given[share]], done.computed).all()
    assert np.isin(done.turns, stale.turns).all()
    keep(chains, asked, chosen, prefill, done)
    again = find(chains, asked, recipe_of(chosen))
    fresh = again.given(asked.layout.length)
    assert fresh[: match.length].sum() >= given.sum()


def test_layerwise_rules_keep_text_of_another_history_where_it_drops_out(bench: Bench) -> None:
    for name in ("cacheblend", "kvshare"):
        policy = make_policy(name, {})
        assert isinstance(policy, LayerwisePolicy)
        asked = tell(bench, DROPPED, policy)
        match = find(told(bench), asked)
        done = go_on(asked, match).reuse(asked.entries, policy, RATIO)
        assert done.turns.tolist() == slots_of_turns(match).tolist()
        assert recipe_of(choice(policy)) is None
