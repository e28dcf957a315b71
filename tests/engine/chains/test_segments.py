"""Names of segments: what they depend on, and what not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.chains.segments import TEXT_BLOCK, Content, Segment, common_head, root_of, segments_of
from engine.families.span import grid_span
from engine.prompt.layout import ImageSpan

IDS = np.arange(200)


def span(image: int, start: int, height: int, width: int) -> ImageSpan:
    return ImageSpan(image, start, grid_span(199, height, width))


SPANS = (span(0, 10, 2, 3), span(1, 16, 3, 2), span(2, 100, 2, 2))
DIGESTS = (b"a" * 32, b"b" * 32, b"c" * 32)
CONTENT = Content(root_of("space", "tenant", b"model"), "tenant", IDS, SPANS, DIGESTS)


def names(content: Content, length: int = 200) -> list[bytes]:
    return [segment.name for segment in segments_of(content, length)]


def test_segments_are_text_blocks_and_images_and_leave_nothing_out() -> None:
    found = list(segments_of(CONTENT, 200))
    assert [(s.start, s.stop, s.image) for s in found] == [
        (0, 10, False),
        (10, 16, True),
        (16, 22, True),
        (22, 22 + TEXT_BLOCK, False),
        (86, 100, False),
        (100, 104, True),
        (104, 168, False),
        (168, 200, False),
    ]
    assert [s.before for s in found] == [CONTENT_START, *(s.name for s in found[:-1])]


CONTENT_START = next(segments_of(CONTENT, 1)).before


@pytest.mark.parametrize("length", [0, 5, 10, 12, 16, 22, 90, 101, 104, 150])
def test_a_shorter_sequence_names_its_whole_segments_as_a_longer_one(length: int) -> None:
    """Only the text that is cut has a name of its own; an image that is cut is none."""
    longer = {(s.start, s.stop): s.name for s in segments_of(CONTENT, 200)}
    for segment in segments_of(CONTENT, length):
        assert segment.stop <= length
        if (segment.start, segment.stop) in longer:
            assert longer[segment.start, segment.stop] == segment.name
        else:
            assert segment.stop == length and not segment.image


def test_a_name_does_not_depend_on_where_text_was_cut() -> None:
    """What is before a slot has one name, whatever the sequence goes on with: a text block or an image."""
    text_only = replace(CONTENT, spans=(), digests=())
    cut = next(segments_of(text_only, 10))
    assert cut.name == names(CONTENT)[0]


CHANGES = {
    "another token": replace(CONTENT, ids=np.where(IDS == 3, 7, IDS)),
    "another image": replace(CONTENT, digests=(b"z" * 32, *DIGESTS[1:])),
    "another grid": replace(CONTENT, spans=(span(0, 10, 1, 6), *SPANS[1:])),
    "another tenant": replace(CONTENT, root=root_of("space", "other", b"model")),
    "a salt": replace(CONTENT, root=root_of("space", "tenant+salt", b"model")),
    "another model": replace(CONTENT, root=root_of("space", "tenant", b"model 2")),
    "another deployment": replace(CONTENT, root=root_of("space 2", "tenant", b"model")),
    "fields that run together alike": replace(CONTENT, root=root_of("spacet", "enant", b"model")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_everything_before_a_segment_is_in_its_name(change: str) -> None:
    changed, ours = names(CHANGES[change]), names(CONTENT)
    differing = [a != b for a, b in zip(ours, changed, strict=True)]
    first = differing.index(True)
    assert all(differing[first:])
    assert first == {"another token": 0, "another image": 1, "another grid": 1}.get(change, 0)


def test_no_text_is_spelled_like_an_image() -> None:
    """Tokens whose numbers are the digest and the grid."""
    grid = span(0, 0, 2, 3)
    image = Content(CONTENT.root, "tenant", IDS[:6], (grid,), DIGESTS[:1])
    ids = np.array([*np.frombuffer(DIGESTS[0], dtype="<i8"), grid.shape.rows, grid.shape.advance])
    text = Content(CONTENT.root, "tenant", ids, (), ())
    assert names(image, 6) != names(text, 6)


def test_images_of_one_size_that_change_places_change_names() -> None:
    spans = (span(0, 10, 2, 3), span(1, 16, 2, 3))
    there = Content(CONTENT.root, "tenant", IDS[:30], spans, DIGESTS[:2])
    swapped = replace(there, digests=(DIGESTS[1], DIGESTS[0]))
    assert len({*names(there, 30), *names(swapped, 30)}) == 2 * len(names(there, 30)) - 1


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2), ([1, 9, 3], [1, 2, 3], 1), ([9], [1], 0)],
)
def test_the_common_head_of_two_runs(ours: list[int], theirs: list[int], common: int) -> None:
    assert common_head(np.array(ours, dtype=np.int64), np.array(theirs, dtype=np.int64)) == common


def test_tokens_of_a_segment() -> None:
    assert Segment(3, 10, b"", b"", False, 3, b"").tokens == 7
