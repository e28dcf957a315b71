"""What a prefill left behind, row by row: how far it is exact, and which rows are fresh."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

from engine.chains.held import Mask, Match
from engine.policies.base import Policy, SelectingPolicy
from engine.policies.choice import Choice
from engine.prompt.layout import NO_SLOTS, ImageSpan, Ints, PromptLayout


def exact_until(
    layout: PromptLayout, match: Match, computed: Ints, restored_exactly: Sequence[ImageSpan]
) -> int:
    """Slots [0, n) hold what full prefill computes: taken so from a chain, or computed (at every layer, in the last
    pass) or restored exactly with nothing before them that is not. `computed` are the slots of that pass."""
    sound = np.zeros(layout.length, dtype=bool)
    sound[computed] = True
    sound[: match.exact] = True
    # Text before the first image sees text alone, whichever pass computed it.
    sound[: layout.spans[0].start if layout.spans else layout.length] = True
    for span in restored_exactly:
        sound[span.start : span.stop] = True
    broken = np.flatnonzero(~sound)
    return int(broken[0]) if len(broken) else layout.length


def fresh_rows(layout: PromptLayout, match: Match, computed: Ints, turns: Ints = NO_SLOTS) -> Mask:
    """Which rows were computed for this prompt, now or for the chain it goes on from, all text among them but what it
    took of `turns`."""
    fresh = match.given(layout.length)
    fresh[computed] = True
    fresh[np.setdiff1d(layout.text_slots(), turns)] = True
    return fresh


def recipe_of(choice: Choice) -> str | None:
    """The quality of what a policy leaves of stale rows: nothing but the same policy, options, ratio and use of turns
    may go on from it. None where there is no such thing: everything is computed, rows are fresh in some layers only, or
    a correction moves what is not."""
    policy: Policy = choice.policy
    if not isinstance(policy, SelectingPolicy) or choice.ratio >= 1:
        return None
    if policy.correction != "none":
        return None
    options = dataclasses.asdict(policy)
    return json.dumps([policy.name, options, choice.ratio, choice.turns], sort_keys=True)
