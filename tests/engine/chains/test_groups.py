"""Prompts that belong together stay together: a hint for eviction, and nothing else."""

from __future__ import annotations

import itertools

import pytest

from engine.chains.groups import MOST_KEPT, group_of
from engine.chains.held import Computed
from engine.chains.tree import Chains
from tests.engine.chains.world import Sequence, find, sequence

OURS = group_of("tenant", "a conversation")
FIRST, SECOND, OTHER = sequence("A", 1), sequence("B", 1), sequence("C", 1)


@pytest.fixture
def chains() -> Chains:
    ticks = itertools.count()
    return Chains(1 << 24, clock=lambda: float(next(ticks)))


def keep(chains: Chains, kept: Sequence, group: bytes | None = None) -> None:
    computed = Computed(kept.keys, kept.values, kept.length, kept.everything)
    chains.keep(kept.content, computed, None, chains.epoch, group)


def survivors(chains: Chains, segments: int) -> set[str]:
    """What is left whole when only so many segments fit."""
    while chains.stats().segments > segments:
        chains.leave_room(chains.stats().bytes - 1)
    named = {"first": FIRST, "second": SECOND, "other": OTHER}
    return {name for name, asked in named.items() if find(chains, asked).length == asked.length}


def test_a_use_of_one_keeps_the_others_of_its_group(chains: Chains) -> None:
    keep(chains, FIRST, OURS)
    keep(chains, SECOND, OURS)
    keep(chains, OTHER)
    chains.release(chains.find(SECOND.content, SECOND.length, None, group=OURS))
    assert survivors(chains, 4) == {"first", "second"}


def test_without_a_group_the_least_recently_used_goes(chains: Chains) -> None:
    keep(chains, FIRST)
    keep(chains, SECOND)
    keep(chains, OTHER)
    chains.release(chains.find(SECOND.content, SECOND.length, None))
    assert survivors(chains, 4) == {"second", "other"}


def test_a_group_is_no_part_of_what_is_found(chains: Chains) -> None:
    keep(chains, FIRST, OURS)
    for group in (None, OURS, group_of("tenant", "another")):
        match = chains.find(FIRST.content, FIRST.length, None, group=group)
        chains.release(match)
        assert match.length == FIRST.length


def test_groups_of_other_tenants_and_salts_are_others() -> None:
    names = [("tenant", "k"), ("tenant+salt", "k"), ("other", "k"), ("tenant", "kk"), ("tenan", "tk")]
    assert len({group_of(*name) for name in names}) == len(names)
    assert group_of("tenant", None) is None and group_of("tenant", "") is None


def test_a_segment_is_in_the_group_that_it_was_last_kept_for(chains: Chains) -> None:
    keep(chains, FIRST, group_of("tenant", "another"))
    keep(chains, FIRST, OURS)
    keep(chains, SECOND)
    keep(chains, OTHER)
    chains.release(chains.find(sequence(9).content, 1, None, group=group_of("tenant", "another")))
    assert survivors(chains, 4) == {"second", "other"}


def test_what_is_evicted_leaves_its_group_and_groups_end_with_their_last(chains: Chains) -> None:
    for number in range(50):
        keep(chains, sequence(1000 + number, "A"), group_of("tenant", str(number)))
    chains.leave_room(0)
    assert chains.stats().segments == 0
    assert not chains._groups._members


def test_a_use_counts_for_the_newest_of_a_large_group_only(chains: Chains) -> None:
    chains._groups.newest(OURS)
    for number in range(MOST_KEPT + 10):
        keep(chains, sequence(1000 + number), OURS)
    newest = chains._groups.newest(OURS)
    assert len(newest) == MOST_KEPT
    assert int(newest[-1].ids[0]) == 1000 + MOST_KEPT + 9
