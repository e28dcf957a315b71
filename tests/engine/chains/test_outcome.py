"""How far a prefill is exact, which of its rows are fresh, and what may go on from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from engine.chains.held import EXACT, NO_MATCH, Held, Match, Taken
from engine.chains.outcome import exact_until, fresh_rows, recipe_of
from engine.chains.segments import Segment
from engine.families.span import grid_span
from engine.policies.choice import Choice
from engine.policies.known import make_policy
from engine.prompt.layout import ImageSpan, PromptLayout

# Text, four rows of an image, text, four rows of another, text.
FIRST, SECOND = ImageSpan(0, 4, grid_span(99, 2, 2)), ImageSpan(1, 10, grid_span(99, 2, 2))
LENGTH = 18
LAYOUT = PromptLayout(
    np.arange(LENGTH), (FIRST, SECOND), np.zeros((3, LENGTH)), 0, cast(Any, None), exact=(FIRST,)
)
TEXT = LAYOUT.text_slots()


def held(start: int, stop: int, offsets: list[int] | None = None, quality: str = EXACT) -> Taken:
    segment = Segment(start, stop, b"", b"", offsets is not None)
    at = None if offsets is None else torch.tensor(offsets)
    row = torch.zeros(1, 1, 1, 1)
    return Taken(Held(segment, "t", quality, np.arange(0), at, row, row, 0.0), stop - start)


@pytest.mark.parametrize(
    ("computed", "match", "restored", "expected"),
    [
        (np.arange(LENGTH), NO_MATCH, (), LENGTH),
        (TEXT, NO_MATCH, (), 4),
        (TEXT, NO_MATCH, (FIRST,), 10),
        (TEXT, NO_MATCH, (FIRST, SECOND), LENGTH),
        (TEXT, NO_MATCH, (SECOND,), 4),
        (np.arange(10, LENGTH), NO_MATCH, (FIRST,), 8),
        (np.arange(10), NO_MATCH, (), 10),
        (np.arange(8, LENGTH), Match((held(0, 8),)), (), LENGTH),
        (TEXT, Match((held(0, 6),)), (), 6),
        (np.array([], dtype=int), NO_MATCH, (), 4),
    ],
)
def test_a_prefill_is_exact_up_to_the_first_row_that_is_neither_computed_nor_restored_so(
    computed: np.ndarray, match: Match, restored: tuple[ImageSpan, ...], expected: int
) -> None:
    assert exact_until(LAYOUT, match, computed, restored) == expected


def test_without_images_all_text_is_exact() -> None:
    text_only = replace(LAYOUT, spans=(), exact=())
    assert exact_until(text_only, NO_MATCH, np.array([], dtype=int), ()) == LENGTH


def test_fresh_is_what_was_computed_now_or_for_the_chain_and_all_text() -> None:
    match = Match((held(0, 4),), (held(4, 8, [1], "r"),))
    fresh = np.flatnonzero(fresh_rows(LAYOUT, match, np.array([12])))
    assert fresh.tolist() == [*range(4), 5, 8, 9, 12, *range(14, LENGTH)]


def recipe(policy: str = "conduit", ratio: float = 0.1, **options: object) -> str | None:
    return recipe_of(Choice(make_policy(policy, options), ratio))


def test_a_recipe_is_the_policy_with_its_options_and_its_ratio() -> None:
    recipes = [
        recipe(),
        recipe(ratio=0.2),
        recipe("impact"),
        recipe("first_k"),
        recipe(score_layers="1,2"),
    ]
    recipes.append(recipe_of(Choice(make_policy("conduit", {}), 0.1, turns="reuse")))
    assert None not in recipes and len(set(recipes)) == len(recipes)
    assert recipe() == recipe()


def test_there_is_no_recipe_where_nothing_stale_is_left_or_rows_are_neither_stale_nor_fresh() -> None:
    assert recipe("full", 1.0) is recipe(ratio=1.0) is None
    assert recipe("cacheblend") is None
    assert recipe(correction="shift") is None
