"""The tree of chains: what is found, what is shared, who goes first."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from engine.chains.held import OVERHEAD_BYTES, Computed
from engine.chains.segments import TEXT_BLOCK
from engine.chains.tree import Chains
from tests.engine.chains.world import PICTURES, ROW_BYTES, Sequence, find, keep, sequence

PLENTY = 1 << 24
LONG = tuple(range(1000, 1000 + 3 * TEXT_BLOCK + 7))
ASKED = sequence(1, 2, "A", 3, "B", 4, 5)


def cost(tokens: int, words: int) -> int:
    """Bytes of a segment of `tokens` rows, of which `words` are text."""
    return tokens * ROW_BYTES + words * 8 + OVERHEAD_BYTES


@pytest.fixture
def chains() -> Chains:
    ticks = itertools.count()
    return Chains(PLENTY, clock=lambda: float(next(ticks)))


def test_the_longest_beginning_is_found_to_the_token(chains: Chains) -> None:
    keep(chains, sequence(1, 2, "A", 3, "B", 4, 5, 6, 7))
    found = {
        "all of it": (ASKED, 13),
        "another question": (sequence(1, 2, "A", 3, "B", 4, 9, 9), 12),
        "another text between": (sequence(1, 2, "A", 8, "B", 4, 5), 6),
        "another second image": (sequence(1, 2, "A", 3, "C", 4, 5), 7),
        "another first image": (sequence(1, 2, "B", 3, "B", 4, 5), 2),
        "another start": (sequence(9, 2, "A", 3, "B", 4, 5), 0),
        "an image where text stood": (sequence(1, "A", 3), 1),
        "text where an image stood": (sequence(1, 2, 3), 2),
        "one image appended": (sequence(1, 2, "A", 3, "B", 4, 5, 6, 7, "C", 8), 15),
    }
    for name, (asked, expected) in found.items():
        assert find(chains, asked).exact == expected, name


def test_a_question_is_never_wholly_taken_when_its_last_row_is_needed(chains: Chains) -> None:
    keep(chains, ASKED)
    assert find(chains, ASKED, length=ASKED.length - 1).exact == ASKED.length - 1


def test_what_is_held_is_a_copy_of_what_the_request_goes_on_to_change(chains: Chains) -> None:
    kept = sequence(1, 2, "A", 3)
    keep(chains, kept)
    kept.keys.zero_()
    kept.values.zero_()
    kept.content.ids[:] = 7
    assert find(chains, sequence(1, 2, "A", 3)).exact == 7
    assert find(chains, sequence(1, 5)).exact == 1


def test_long_texts_are_found_to_the_token_in_whatever_block(chains: Chains) -> None:
    keep(chains, sequence(*LONG))
    for common in (0, 1, TEXT_BLOCK - 1, TEXT_BLOCK, TEXT_BLOCK + 1, 2 * TEXT_BLOCK + 5, len(LONG)):
        assert find(chains, sequence(*LONG[:common], 7, 7, 7)).exact == common
    assert find(chains, sequence(*LONG, 1, 2, 3)).exact == len(LONG)


def test_shared_heads_are_held_once(chains: Chains) -> None:
    head = (*LONG, "A", 1, 2)
    keep(chains, sequence(*head, 3))
    once = chains.stats().bytes
    keep(chains, sequence(*head, 4, 5))
    assert chains.stats().bytes - once == cost(4, 4)  # the text behind the image, of two questions
    keep(chains, sequence(*head, 4, 5))
    assert chains.stats().bytes - once == cost(4, 4)


def test_an_answer_takes_the_place_of_the_question_it_goes_on_from(chains: Chains) -> None:
    keep(chains, sequence("A", 1, 2))
    keep(chains, sequence("A", 1, 2, 3, 4))
    assert chains.stats().segments == 2
    assert chains.stats().bytes == cost(4, 0) + cost(4, 4)
    keep(chains, sequence("A", 1, 2, 3))  # and a shorter one adds nothing
    assert chains.stats().segments == 2


def test_a_head_that_is_part_of_a_longer_text_still_leads_to_its_image() -> None:
    """The same system prompt, once before an image and once before more text."""
    for first, second in (
        (sequence(1, 2, "A", 3), sequence(1, 2, 5, 6)),
        (sequence(1, 2, 5, 6), sequence(1, 2, "A", 3)),
    ):
        chains = Chains(PLENTY)
        keep(chains, first)
        keep(chains, second)
        assert find(chains, sequence(1, 2, "A", 3, 4)).exact == 7
        assert find(chains, sequence(1, 2, 5, 6, 7)).exact == 4


def test_forks_in_the_middle_keep_both_ways(chains: Chains) -> None:
    ways = [sequence(1, "A", *LONG[:100], fork, "B", 5) for fork in range(5)]
    for way in ways:
        keep(chains, way)
    for way in ways:
        assert find(chains, way).exact == way.length


def test_nothing_is_found_across_tenants_and_salts(chains: Chains) -> None:
    keep(chains, ASKED)
    for tenant in ("other", "tenant+salt", ""):
        assert find(chains, sequence(1, 2, "A", 3, "B", 4, 5, tenant=tenant)).length == 0


def test_a_refreshed_chain_serves_its_own_recipe_only_and_exact_ones_serve_all(chains: Chains) -> None:
    fresh = ASKED.everything
    fresh[[3, 5, 8]] = False
    keep(chains, ASKED, exact=2, recipe="conduit 0.1", fresh=fresh)
    same = find(chains, ASKED, "conduit 0.1")
    assert (same.exact, same.length) == (2, 13)
    assert same.given(13).tolist() == fresh.tolist()
    for recipe in (None, "conduit 0.2"):
        assert find(chains, ASKED, recipe).length == 2


def test_what_two_recipes_left_has_names_of_its_own_for_an_operator(chains: Chains) -> None:
    for recipe in ("conduit 0.1", "conduit 0.2"):
        keep(chains, ASKED, exact=2, recipe=recipe)
    keys = [held.digest for held in chains.every()]
    assert len(keys) == len(set(keys)) == 1 + 2 * 4


def test_what_has_no_recipe_is_held_as_far_as_it_is_exact(chains: Chains) -> None:
    keep(chains, ASKED, exact=7, recipe=None)
    assert find(chains, ASKED).length == 7


def test_refreshed_rows_add_up_and_never_get_fewer(chains: Chains) -> None:
    fewer, more = ASKED.everything, ASKED.everything
    fewer[2:6] = [False, True, False, False]
    more[2:6] = [False, True, True, True]
    for mask, expected in ((fewer, fewer), (more, more), (fewer, more)):
        keep(chains, ASKED, exact=2, recipe="r", fresh=mask)
        assert find(chains, ASKED, "r").given(13).tolist() == expected.tolist()


def test_exact_rows_go_before_refreshed_ones(chains: Chains) -> None:
    fresh = ASKED.everything
    fresh[2:6] = False
    keep(chains, ASKED, exact=2, recipe="r", fresh=fresh)
    keep(chains, sequence(1, 2, "A", 3), exact=6)
    match = find(chains, ASKED, "r")
    assert (match.exact, match.length) == (6, 13)
    keep(chains, ASKED)
    assert find(chains, ASKED, "r").exact == 13


def test_what_is_held_exactly_is_not_held_refreshed_as_well(chains: Chains) -> None:
    keep(chains, ASKED)
    keep(chains, ASKED, exact=2, recipe="r")
    assert chains.stats().segments == 5


def test_exact_rows_take_the_place_of_what_a_recipe_left(chains: Chains) -> None:
    keep(chains, ASKED, exact=2, recipe="r")
    keep(chains, ASKED, recipe="r")
    assert chains.stats().segments == 5 and find(chains, ASKED).exact == ASKED.length
    chains.leave_room(0)
    assert not chains._held and not chains._texts._texts and chains.stats().bytes == 0


def test_more_rows_wait_while_fewer_are_being_read(chains: Chains) -> None:
    fewer = ASKED.everything
    fewer[2:5] = False
    keep(chains, ASKED, exact=2, recipe="r", fresh=fewer)
    match = chains.find(ASKED.content, ASKED.length, "r")
    keep(chains, ASKED, exact=2, recipe="r")
    assert chains.stats().bytes == sum(held.nbytes for held in chains._held.values())
    assert find(chains, ASKED, "r").given(13).tolist() == fewer.tolist()
    chains.release(match)
    keep(chains, ASKED, exact=2, recipe="r")
    assert find(chains, ASKED, "r").given(13).all()


def test_where_nothing_is_in_common_nothing_is_taken(chains: Chains) -> None:
    keep(chains, ASKED)
    match = chains.find(sequence(9, 9, "A").content, 6, None)
    assert (match.head, match.rest, chains.stats().leases) == ((), (), 0)


def test_the_least_recently_used_goes_first_and_from_its_end(chains: Chains) -> None:
    old, new = sequence("A", 1, "B", 2), sequence("C", 1)
    keep(chains, old)
    keep(chains, new)
    left = chains.stats().bytes
    lengths = []
    for _ in range(6):
        chains.leave_room(chains.stats().bytes - 1)
        lengths.append((find_length(chains, old), find_length(chains, new)))
    assert lengths == [(9, 16), (5, 16), (4, 16), (0, 16), (0, 15), (0, 0)]
    assert chains.stats().evictions == {"capacity": 6}
    chains.leave_room(None)
    keep(chains, old)
    keep(chains, new)
    assert chains.stats().bytes == left


def find_length(chains: Chains, asked: Sequence) -> int:
    """Without counting as a use."""
    return sum(taken.tokens for taken in chains._walk(asked.content, asked.length, [""]))


def test_a_use_protects_the_whole_chain(chains: Chains) -> None:
    first, second = sequence("A", 1, "B", 2), sequence("C", 1)
    keep(chains, first)
    keep(chains, second)
    find(chains, first)
    chains.leave_room(chains.stats().bytes - cost(1, 1) - 1)
    assert find_length(chains, first) == first.length
    assert find_length(chains, second) == 0


def test_of_a_chain_that_is_used_the_end_goes_first(chains: Chains) -> None:
    kept = sequence("A", 1, "B", 2)
    keep(chains, kept)
    find(chains, kept)
    chains.leave_room(chains.stats().bytes - 1)
    assert find_length(chains, kept) == kept.length - 1


def test_the_room_is_never_more_than_the_budget_nor_less_than_none(chains: Chains) -> None:
    for asked, room in ((2 * PLENTY, PLENTY), (7, 7), (-7, 0), (None, PLENTY)):
        chains.leave_room(asked)
        assert chains.room == room


def test_behind_what_does_not_fit_nothing_is_held() -> None:
    """A chain with a gap could never be found."""
    chains = Chains(cost(2, 2) + cost(1, 1))
    keep(chains, sequence(1, 2, "C", 3))
    assert chains.stats().segments == 1


def test_what_began_before_chains_were_cleared_is_not_kept(chains: Chains) -> None:
    since = chains.epoch
    chains.outdate()
    computed = Computed(ASKED.keys, ASKED.values, ASKED.length, ASKED.everything)
    chains.keep(ASKED.content, computed, None, since)
    assert chains.stats().segments == 0
    chains.keep(ASKED.content, computed, None, chains.epoch)
    assert chains.stats().segments == 5


def test_a_look_that_no_request_takes_is_not_counted(chains: Chains) -> None:
    keep(chains, ASKED)
    chains.release(chains.find(ASKED.content, ASKED.length, None, count=False))
    stats = chains.stats()
    assert (stats.requests, stats.matched, stats.exact_tokens, stats.leases) == (0, 0, 0, 0)


def test_what_is_leased_is_never_evicted_and_counts(chains: Chains) -> None:
    keep(chains, ASKED)
    other = sequence("C", 1)
    keep(chains, other)
    match = chains.find(ASKED.content, ASKED.length, None)
    assert chains.stats().leases == 5
    chains.leave_room(0)
    assert find_length(chains, ASKED) == ASKED.length and find_length(chains, other) == 0
    assert find_length(chains, ASKED) == ASKED.length
    keep(chains, sequence(1, 2, "A", 3, "B", 4, 5, 6))  # would take the place of a leased one
    assert find_length(chains, ASKED) == ASKED.length
    chains.release(match)
    chains.leave_room(0)
    assert chains.stats().bytes == chains.stats().segments == chains.stats().leases == 0


def test_a_chain_too_large_is_held_from_its_beginning_as_far_as_it_fits() -> None:
    chains = Chains(cost(2, 2) + cost(4, 0) + cost(1, 1))
    keep(chains, sequence(7, 7, 7))
    keep(chains, ASKED)
    assert find(chains, ASKED).exact == 7
    assert chains.stats().bytes == chains.budget


def test_what_began_before_chains_were_outdated_leaves_nothing(chains: Chains) -> None:
    since = chains.epoch
    keep(chains, sequence(1, 2))
    match = chains.find(ASKED.content, ASKED.length, None)
    chains.outdate()
    chains.keep(ASKED.content, Computed(ASKED.keys, ASKED.values, 13, ASKED.everything), None, since)
    assert find(chains, ASKED).length == 2
    held = chains.find(ASKED.content, 2, None).taken[-1]
    assert chains.extend(match, held, since) is None
    chains.write_out(ASKED.content, None, since, lambda *_: pytest.fail("written"), lambda _: None)


def test_a_segment_goes_by_its_digest_and_who_reads_it_keeps_it(chains: Chains) -> None:
    keep(chains, ASKED)
    match = chains.find(ASKED.content, ASKED.length, None)
    image = match.head[1].held
    assert chains.of_digest(image.digest) is image and chains.evict(image.digest, "admin")
    assert chains.of_digest(image.digest) is None and not chains.evict(image.digest, "admin")
    assert find(chains, ASKED).length == 2
    keys, values = torch.zeros_like(ASKED.keys), torch.zeros_like(ASKED.values)
    match.write_head(keys, values)
    assert torch.equal(keys, ASKED.keys)
    chains.release(match)
    assert chains.stats().evictions == {"admin": 1} and chains.stats().leases == 0


def test_without_a_budget_nothing_is_held() -> None:
    chains = Chains(0)
    keep(chains, ASKED)
    assert find(chains, ASKED).length == 0
    assert chains.stats().segments == chains.stats().requests == 0


def test_counts(chains: Chains) -> None:
    fresh = ASKED.everything
    fresh[3] = False
    keep(chains, ASKED, exact=2, recipe="r", fresh=fresh)
    find(chains, ASKED, "r")
    find(chains, sequence(9), "r")
    stats = chains.stats()
    assert (stats.requests, stats.matched, stats.exact_tokens, stats.refreshed_tokens) == (2, 1, 2, 10)
    assert stats.bytes_budget == PLENTY and stats.leases == 0


def common(ours: Sequence, theirs: Sequence) -> int:
    """Slots that two sequences have in common at their beginning, images whole or not at all: what to expect."""
    slot = 0
    while slot < min(ours.length, theirs.length):
        starts = [[s for s in q.content.spans if s.start == slot] for q in (ours, theirs)]
        if bool(starts[0]) != bool(starts[1]):
            return slot
        if starts[0]:
            images = [
                (q.content.digests[s[0].image], s[0].tokens)
                for q, s in zip((ours, theirs), starts, strict=True)
            ]
            if images[0] != images[1]:
                return slot
            slot = starts[0][0].stop
        elif ours.content.ids[slot] != theirs.content.ids[slot]:
            return slot
        else:
            slot += 1
    return slot


@pytest.mark.parametrize("seed", range(20))
def test_random_conversations_find_what_a_plain_comparison_finds(seed: int) -> None:
    """Whatever was kept before, and in whatever order: the longest common beginning, with the right rows."""
    draw, chains, kept = random.Random(seed), Chains(PLENTY), []
    for _ in range(30):
        asked = _grown(draw, kept)
        expected = max((common(asked, other) for other in kept), default=0)
        assert find(chains, asked).exact == expected
        if draw.random() < 0.7:
            keep(chains, asked)
            kept.append(asked)
    assert chains.stats().bytes == sum(held.nbytes for held in chains._held.values())


def _grown(draw: random.Random, kept: list[Sequence]) -> Sequence:
    """A beginning of a kept sequence, often, and something new behind it."""
    parts: list[int | str] = []
    if kept and draw.random() < 0.8:
        before = _parts(draw.choice(kept))
        parts = before[: draw.randrange(len(before) + 1)]
    for _ in range(draw.randrange(1, 4)):
        if draw.random() < 0.4:
            parts.append(draw.choice(list(PICTURES)))
        else:
            parts += [draw.randrange(3)] * draw.choice([1, 2, 5, TEXT_BLOCK, TEXT_BLOCK + 3])
    return sequence(*parts)


def _parts(of: Sequence) -> list[int | str]:
    letters = {digest: letter for letter, (digest, _, _) in PICTURES.items()}
    starts = {span.start: letters[of.content.digests[span.image]] for span in of.content.spans}
    inside = np.zeros(of.length, dtype=bool)
    for span in of.content.spans:
        inside[span.start : span.stop] = True
    return [
        starts.get(slot, int(of.content.ids[slot]))
        for slot in range(of.length)
        if slot in starts or not inside[slot]
    ]
