"""Segments of chains in the tiers: the same tensors come back, from whichever place has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from store.codecs.segment import SEGMENTS
from store.records.keys import SegmentKey, segment_digest
from store.records.segment import SegmentKV, SegmentLayout
from store.stack import Missed
from tests.store.samples import MODEL
from tests.store.stand import Stand

KEY = SegmentKey("default", "acme", MODEL, b"n" * 32, "")
LAYERS, HEADS, WIDTH = 3, 2, 4
BEFORE, ENTRY = "ab" * 32, "cd" * 32


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path / "store")
    yield stand
    stand.close()


def segment(rows: int, tokens: int, words: bool, dtype: torch.dtype = torch.float32) -> SegmentKV:
    draw = torch.Generator().manual_seed(rows)
    keys = torch.rand(LAYERS, HEADS, rows, WIDTH, generator=draw).to(dtype)
    offsets = torch.randperm(tokens, generator=draw)[:rows].sort().values
    ids = torch.arange(tokens) * 1000 if words else torch.arange(0)
    return SegmentKV(keys, -keys, offsets, ids, tokens, 7, BEFORE, "" if words else ENTRY)


def layout(dtype: str = "float32", entry: str = "") -> SegmentLayout:
    return SegmentLayout(LAYERS, HEADS, WIDTH, dtype, BEFORE, entry)


def put(stand: Stand, kept: SegmentKV, key: SegmentKey = KEY, replaces: bool = False) -> bool:
    return stand.segments.offer(key, SEGMENTS, SEGMENTS.prepare(kept), 0.5, replaces)


def same(found: object, kept: SegmentKV) -> bool:
    assert isinstance(found, SegmentKV)
    tensors = all(
        torch.equal(getattr(found, name), getattr(kept, name))
        and getattr(found, name).dtype == getattr(kept, name).dtype
        for name in ("keys", "values", "offsets", "ids")
    )
    plain = (kept.tokens, kept.start, kept.before, kept.entry)
    return tensors and (found.tokens, found.start, found.before, found.entry) == plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "tokens", "words"), [(5, 5, True), (64, 64, True), (3, 9, False), (0, 9, False)]
)
def test_what_is_written_comes_back_bit_for_bit_after_a_restart(
    stand: Stand, rows: int, tokens: int, words: bool, dtype: torch.dtype
) -> None:
    kept = segment(rows, tokens, words, dtype)
    assert put(stand, kept)
    stand.reopen()
    expected = layout(str(dtype).removeprefix("torch."), kept.entry)
    assert same(stand.segments.load(KEY, SEGMENTS, expected), kept)


def test_what_waits_to_be_written_is_found_too(stand: Stand) -> None:
    stand.memory.write_gate.clear()
    kept = segment(5, 5, True)
    assert put(stand, kept)
    assert stand.segments.load(KEY, SEGMENTS, layout()) is kept
    stand.memory.write_gate.set()


def test_a_slower_tier_s_segment_is_written_to_the_faster_one(stand: Stand) -> None:
    put(stand, segment(5, 5, True))
    stand.reopen()
    stand.segments.load(KEY, SEGMENTS, layout())
    assert stand.entries.flush(10)
    assert stand.memory.contains(KEY.digest)


def test_what_was_never_there_is_no_miss_of_a_tier(stand: Stand) -> None:
    missed = stand.segments.load(KEY, SEGMENTS, layout())
    assert missed == Missed("miss", "absent")
    assert [tier.misses for tier in stand.admin.stats().tiers] == [{}, {}]


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_tier_that_fails_costs_its_segments_and_nothing_else(stand: Stand, place: str) -> None:
    kept = segment(5, 5, True)
    put(stand, kept)
    assert stand.entries.flush(10)
    getattr(stand, place).fault = "error"
    assert same(stand.segments.load(KEY, SEGMENTS, layout()), kept)
    stand.memory.fault = stand.disk.fault = "error"
    assert isinstance(stand.segments.load(KEY, SEGMENTS, layout()), Missed)
    stand.segments.touch([KEY.digest])
    stand.segments.discard(KEY.digest)
    assert stand.entries.flush(10)


def test_what_is_there_stays_unless_it_is_replaced(stand: Stand) -> None:
    first, second = segment(5, 5, True), replace(segment(6, 6, True))
    put(stand, first)
    put(stand, second)
    assert stand.entries.flush(10)
    assert same(stand.segments.load(KEY, SEGMENTS, layout()), first)
    put(stand, second, replaces=True)
    assert stand.entries.flush(10)
    assert same(stand.segments.load(KEY, SEGMENTS, layout()), second)


def test_half_of_the_queue_is_left_to_entries_and_who_finds_no_place_is_told(stand: Stand) -> None:
    stand.memory.write_gate.clear()
    large = segment(3000, 3000, True)
    taken = [put(stand, large, replace(KEY, name=bytes([n]) * 32)) for n in range(40)]
    stats = stand.admin.stats()
    assert taken == sorted(taken, reverse=True) and taken[0] and not taken[-1]
    assert stats.writes_dropped["queue_full"] == taken.count(False)
    assert stats.write_queue_bytes - large.nbytes <= stand.sizes[2] // 2 < stats.write_queue_bytes
    stand.fetch(1).release()
    assert stand.admin.stats().write_queue == stats.write_queue + 1
    stand.memory.write_gate.set()


def test_what_it_cost_to_compute_is_in_the_record(stand: Stand) -> None:
    put(stand, segment(5, 5, True))
    assert stand.entries.flush(10)
    row = stand.disk.row(KEY.digest)
    assert row is not None and row.info.compile_seconds == 0.5


def test_numbers_that_are_not_finite_are_not_written(stand: Stand) -> None:
    broken = segment(5, 5, True)
    broken.values[0, 0, 0, 0] = torch.nan
    put(stand, broken)
    assert stand.entries.flush(10)
    assert isinstance(stand.segments.load(KEY, SEGMENTS, layout()), Missed)
    assert stand.admin.stats().writes_dropped == {"codec": 1}


def test_a_key_is_told_by_name_quality_and_whether_it_is_open() -> None:
    """Namespace, tenant and model are at the root of the name; the record says them as well, and is checked for it."""
    keys = [KEY, replace(KEY, name=b"m" * 32), replace(KEY, quality="r"), replace(KEY, open=True)]
    assert len({key.digest for key in keys}) == 4
    assert KEY.digest == segment_digest(KEY.name, "")
    assert (KEY.state, keys[2].state, KEY.kind) == ("exact", "refreshed", "chain")


@pytest.mark.parametrize(
    "changed", [{"tenant": "other"}, {"namespace": "other"}, {"model": replace(MODEL, dtype="x")}]
)
def test_a_record_of_somebody_else_under_the_same_name_is_damage(
    stand: Stand, changed: dict[str, object]
) -> None:
    put(stand, segment(5, 5, True), replace(KEY, **changed))  # type: ignore[arg-type]
    stand.reopen()
    missed = stand.segments.load(KEY, SEGMENTS, layout())
    assert isinstance(missed, Missed) and missed.outcome == "corrupt"
    assert stand.entries.flush(10)
    assert not stand.disk.contains(KEY.digest)
