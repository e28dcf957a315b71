"""Held texts by what stands right before them: which are found, how long they stay, for whom."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.chains.held import Match
from engine.chains.segments import TEXT_BLOCK
from engine.chains.tree import Chains
from engine.chains.turns import LEAST_TOKENS
from tests.engine.chains.world import Sequence, keep, sequence

PLENTY = 1 << 24


def said(number: int, tokens: int = LEAST_TOKENS) -> tuple[int, ...]:
    return tuple(range(1000 * number, 1000 * number + tokens))


ONE, TWO, THREE = said(1), said(2), said(3)
WHOLE = sequence(1, 2, "A", *ONE, "B", *TWO, "C", *THREE, 7)
# The first picture and what was said of it are gone.
DROPPED = sequence(1, 2, "B", *TWO, "C", *THREE, 8)


@pytest.fixture
def chains() -> Chains:
    ticks = itertools.count()
    return Chains(PLENTY, clock=lambda: float(next(ticks)))


def look(chains: Chains, asked: Sequence, recipe: str | None = None, stop: int | None = None) -> Match:
    match = chains.find(asked.content, asked.length - 1, recipe)
    match = chains.find_turns(match, asked.content, asked.length - 1 if stop is None else stop, recipe)
    chains.release(match)
    return match


def texts(match: Match, asked: Sequence) -> list[tuple[int, ...]]:
    return [tuple(asked.content.ids[turn.start : turn.stop].tolist()) for turn in match.turns]


def test_the_text_behind_an_edit_is_not_found_and_the_next_one_is(chains: Chains) -> None:
    keep(chains, WHOLE)
    assert texts(look(chains, DROPPED), DROPPED) == [THREE]
    inserted = sequence(1, 2, "A", *ONE, "C", *said(9), "B", *TWO, "C", *THREE, 7)
    assert texts(look(chains, inserted), inserted) == [THREE]
    other_start = sequence(5, 6, "A", *ONE, "B", *TWO, "C", *THREE, 7)
    assert texts(look(chains, other_start), other_start) == [TWO, THREE + (7,)[:0]]


def test_equal_texts_are_told_apart_by_their_pictures(chains: Chains) -> None:
    keep(chains, sequence(1, "A", *ONE, "B", *ONE, "C", *ONE, 7))
    asked = sequence(2, "B", *ONE, "C", *ONE, 7)
    (turn,) = look(chains, asked).turns
    held = turn.held.segment
    # The third text, computed where it stood: behind three pictures and two texts.
    assert held.start == 1 + 4 + len(ONE) + 4 + len(ONE) + 15
    assert turn.start == 1 + 4 + len(ONE) + 15


def test_another_text_before_or_another_picture_is_another_turn(chains: Chains) -> None:
    keep(chains, WHOLE)
    for asked in (
        sequence(9, "B", *said(8), "C", *THREE, 7),  # the run before says something else
        sequence(9, "B", *TWO, "A", *THREE, 7),  # another picture
        sequence(9, "A", *TWO, "C", *THREE, 7),  # another picture before
        sequence(9, *THREE, "A", 7, 7),  # text before the first picture
    ):
        assert look(chains, asked).turns == ()


def test_a_text_is_found_to_the_token_and_no_further_than_asked(chains: Chains) -> None:
    long = said(4, TEXT_BLOCK + 20)
    keep(chains, sequence(1, "A", *ONE, "B", *long))
    asked = sequence(2, "A", *ONE, "B", *long[:-5], 5, 5, 5)
    start = 1 + 4 + len(ONE) + 4
    found = look(chains, asked, stop=asked.length)
    assert [(turn.start, turn.tokens) for turn in found.turns] == [
        (start, TEXT_BLOCK),
        (start + TEXT_BLOCK, 15),
    ]
    assert [turn.tokens for turn in look(chains, asked, stop=start + LEAST_TOKENS + 1).turns] == [
        LEAST_TOKENS + 1
    ]
    assert look(chains, asked, stop=start + LEAST_TOKENS - 1).turns == ()


def test_no_turn_crosses_tenants(chains: Chains) -> None:
    keep(chains, WHOLE)
    other = sequence(1, 2, "B", *TWO, "C", *THREE, 8, tenant="other")
    assert look(chains, other).turns == ()


def test_turns_of_another_recipe_are_not_taken_and_exact_ones_come_first(chains: Chains) -> None:
    keep(chains, WHOLE, exact=2, recipe="one")
    assert look(chains, DROPPED, "other").turns == () and look(chains, DROPPED, None).turns == ()
    assert [turn.held.quality for turn in look(chains, DROPPED, "one").turns] == ["one"]
    keep(chains, sequence(1, 2, 3, "A", *ONE, "B", *TWO, "C", *THREE, 7))
    assert [turn.held.quality for turn in look(chains, DROPPED, "one").turns] == [""]


def test_stale_rows_are_held_but_not_given(chains: Chains) -> None:
    fresh = np.ones(DROPPED.length, dtype=bool)
    stale = slice(DROPPED.length - 1 - len(THREE), DROPPED.length - 3)
    fresh[stale] = False
    keep(chains, DROPPED, exact=2, recipe="one", fresh=fresh)
    match = look(chains, DROPPED, "one")
    assert match.length == DROPPED.length - 1
    given = match.given(DROPPED.length)
    assert not given[stale].any() and given[: DROPPED.length - 1].sum() == DROPPED.length - 1 - 6
    assert [(turn.start, turn.tokens) for turn in match.turns] == [(stale.start, len(THREE))]
    # What was computed since takes their place; what is staler does not take it back.
    keep(chains, DROPPED, exact=2, recipe="one")
    assert look(chains, DROPPED, "one").given(DROPPED.length)[: DROPPED.length - 1].all()
    keep(chains, DROPPED, exact=2, recipe="one", fresh=fresh)
    assert look(chains, DROPPED, "one").turns == ()


def test_a_turn_in_use_is_never_evicted(chains: Chains) -> None:
    keep(chains, WHOLE)
    match = chains.find_turns(Match(), DROPPED.content, DROPPED.length - 1, None)
    chains.leave_room(0)
    assert chains.stats().segments == chains.stats().leases == len(match.turns) == 1
    chains.release(match)
    chains.leave_room(0)
    assert chains.stats().segments == chains.stats().leases == 0
    chains.leave_room(None)
    assert look(chains, DROPPED).turns == ()
