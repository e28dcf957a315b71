"""What a request is told: where the KV of each image was from, and that all of it adds up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from engine.answer.report import Chained, kv_report, usage
from engine.families.span import grid_span
from engine.passes.refresh import Prefilled
from engine.policies.choice import Choice
from engine.policies.known import make_policy
from engine.prompt.layout import ImageSpan, PromptLayout
from engine.reports import KvReport

IMAGE = 99
LENGTH = 50


@dataclass(frozen=True)
class Told:
    """As much of a `Fetched` as a report reads."""

    outcome: str
    reason: str = ""
    tier: str | None = None
    bytes: int = 0
    load_seconds: float = 0.0
    compile_seconds: float = 0.0


def layout_of(*spans: tuple[int, int, int]) -> PromptLayout:
    """Images of height and width at a start."""
    placed = tuple(ImageSpan(i, start, grid_span(IMAGE, h, w)) for i, (start, h, w) in enumerate(spans))
    return PromptLayout(np.arange(LENGTH), placed, np.zeros((3, LENGTH)), 0, cast(Any, None), ())


def report_of(
    layout: PromptLayout,
    fetched: list[Told | None],
    keys: list[str],
    refreshed: tuple[int, ...],
    exact: tuple[bool, ...],
    chained: Chained,
) -> KvReport:
    choice = Choice(make_policy("conduit", {}), 0.1)
    nothing = np.arange(0)
    prefilled = Prefilled(torch.zeros(1), refreshed, exact, computed=nothing, turns=nothing)
    return kv_report(choice, layout, prefilled, cast(Any, fetched), keys, chained)


LAYOUT = layout_of((4, 2, 2), (10, 2, 3), (20, 2, 2), (30, 1, 5), (40, 1, 5))
# In the exact head of a chain; a hit that the chain goes on with; a hit; an image compiled now, and once more.
MIXED = report_of(
    LAYOUT,
    [None, Told("hit", "", "lmdb", 600, 0.25), Told("hit", "", "memory", 400), *[Told("miss", "absent")] * 2],
    ["a", "b", "a", "c", "c"],
    (0, 1, 0, 2, 1),
    (True, False, False, False, True),
    Chained((4, 2, 0, 0, 0), 8, 5),
)


def test_where_visual_tokens_are_from_adds_up() -> None:
    assert (MIXED.visual_tokens, MIXED.reused, MIXED.compiled, MIXED.refreshed, MIXED.chained) == (
        24,
        3 + 4,
        3 + 4,
        4,
        6,
    )
    assert (MIXED.chained_exact, MIXED.chained_refreshed) == (8, 5)


def test_an_image_is_a_hit_of_the_chain_where_the_exact_head_ends_with_it() -> None:
    told = [(i.outcome, i.tier, i.chained, i.exact) for i in MIXED.images]
    assert told == [
        ("hit", "chain", 4, True),
        ("hit", "lmdb", 2, False),
        ("hit", "memory", 0, False),
        ("miss", None, 0, False),
        ("miss", None, 0, True),
    ]


def test_equal_images_are_told_by_the_first_of_them() -> None:
    assert [i.same_as for i in MIXED.images] == [None, None, 0, None, 3]


def test_loading_and_compiling_are_told_apart() -> None:
    layout = layout_of((0, 1, 1), (1, 1, 1))
    told = [Told("hit", "", "redis", 7, load_seconds=0.5), Told("outdated", "codec", None, 9, 0.0, 2.0)]
    report = report_of(layout, [*told], ["a", "b"], (0, 0), (False, False), Chained((0, 0), 0, 0))
    assert [(i.reason, i.bytes, i.load_seconds, i.compile_seconds) for i in report.images] == [
        ("", 7, 0.5, 0.0),
        ("codec", 9, 0.0, 2.0),
    ]


def test_usage_counts_what_was_not_computed_and_each_image_that_was_stored_once() -> None:
    kept = usage(LAYOUT, MIXED, 7, stores=True)
    assert (kept.prompt_tokens, kept.completion_tokens, kept.image_tokens) == (LENGTH, 7, 24)
    assert (kept.cached_tokens, kept.cache_write_tokens) == (7 + 8 + 5, 5)
    assert usage(LAYOUT, MIXED, 7, stores=False).cache_write_tokens == 0


def test_an_image_that_was_not_asked_for_is_neither_reused_nor_written() -> None:
    layout = layout_of((0, 2, 2))
    report = report_of(layout, [None], ["a"], (4,), (True,), Chained((0,), 0, 0))
    (image,) = report.images
    assert (image.outcome, image.reason, image.tier, image.exact) == ("bypass", "policy", None, True)
    assert (report.reused, report.compiled, report.refreshed) == (0, 0, 4)
    counted = usage(layout, report, 1, stores=True)
    assert (counted.cached_tokens, counted.cache_write_tokens) == (0, 0)
