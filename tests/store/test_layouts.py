"""What a record says is checked before it is used: against the key, the model and the image's grid, in every tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from store.codecs.protocol import codec_named
from store.open import Store, assemble
from store.records.buffers import BufferPool
from store.records.entry import ImageKV
from store.records.header import RecordInfo
from store.records.record import Encoded, Record, build
from store.records.tensors import FIELDS, buffer_of
from store.residency.eviction import never_held
from store.tiers.protocol import Tier, kinds
from tests.contract.test_tiers import build as build_tier
from tests.store.redis_server import shared_server
from tests.store.samples import key_of, unused
from tests.store.tensors import entry_of, layout_of, same

MIB = 1 << 20
BUFFERS = BufferPool(MIB)
KEY = key_of(1, codec="raw")
ENTRY = entry_of(1, tokens=6)


@pytest.fixture(params=kinds(), ids=lambda kind: kind.name)
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    shared_server().flush()
    return build_tier(request.param, tmp_path)


@pytest.fixture
def store(tier: Tier) -> Iterator[Store[ImageKV]]:
    store = assemble([tier], codec_named("raw"), 0)
    yield store
    store.entries.close()


def record_of(entry: ImageKV, **info: Any) -> Record:
    """A record that is sound but for what it says, whatever a codec thinks of it."""
    said = replace(RecordInfo.of(KEY, entry.tokens, 1000.0, 0.1), **info)
    buffers = [buffer_of(name, getattr(entry, name).contiguous()) for name in FIELDS]
    return build(KEY.digest, "raw/1", Encoded(buffers), said, BUFFERS)


def with_number(name: str, value: float) -> Callable[[], ImageKV]:
    def make() -> ImageKV:
        entry = ImageKV(**{field: getattr(ENTRY, field).clone() for field in FIELDS})
        getattr(entry, name).view(-1)[-1] = value
        return entry

    return make


def arranged(**shapes: tuple[int, ...]) -> Callable[[], ImageKV]:
    def make() -> ImageKV:
        return replace(ENTRY, **{name: getattr(ENTRY, name).reshape(shape) for name, shape in shapes.items()})

    return make


KV = ("keys", "values")
OTHERS: dict[str, Callable[[], ImageKV]] = {
    "one head of 8 for 2 of 4": arranged(**dict.fromkeys(KV, (2, 1, 6, 8))),
    "half the layers": lambda: replace(
        ENTRY, keys=ENTRY.keys[:1], values=ENTRY.values[:1], value_norms=ENTRY.value_norms[:1]
    ),
    "four layers for 2": arranged(**dict.fromkeys(KV, (4, 1, 6, 4))),
    "fewer tokens than the grid": lambda: entry_of(1, tokens=5),
    "more tokens than the grid": lambda: entry_of(1, tokens=7),
    "another dtype": lambda: entry_of(1, tokens=6, dtype=torch.bfloat16),
    "values of another dtype": lambda: replace(ENTRY, values=ENTRY.values.half()),
    "one level of features for 2": lambda: replace(ENTRY, features=ENTRY.features[:1]),
    "features of another width": arranged(features=(2, 12, 4)),
    "norms of other rows": arranged(value_norms=(6, 2)),
    "norms of another dtype": lambda: replace(ENTRY, value_norms=ENTRY.value_norms.half()),
    "keys on three axes": arranged(keys=(4, 6, 4)),
    **{f"{value} in {name}": with_number(name, float(value)) for name in FIELDS for value in ("nan", "inf")},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_f5_a_record_that_the_model_cannot_use_is_outdated_removed_counted_and_computed_anew(
    tier: Tier, store: Store[ImageKV], other: Callable[[], ImageKV]
) -> None:
    tier.put(record_of(other()), 1.0, never_held)
    with store.entries.fetch(KEY, lambda: ENTRY, layout=layout_of(ENTRY)) as fetched:
        assert fetched.outcome == "outdated" and tier.name in fetched.reason
        assert same(fetched.entry, ENTRY)
    store.entries.flush(10)
    assert tier.stats().rejected == {"outdated": 1}
    assert tier.stats().hits == 0
    with store.entries.fetch(KEY, unused, layout=layout_of(ENTRY)) as fetched:
        assert fetched.outcome == "hit"
        assert same(fetched.entry, ENTRY)
    assert tier.stats().entries == 1


@pytest.mark.parametrize(
    "lie",
    [
        {"tokens": 5},
        {"tenant": "rival"},
        {"namespace": "other"},
        {"model": "other"},
        {"model_digest": "00" * 32},
        {"codec": "int8"},
        {"kind": "chain"},
        {"width": 3},
        {"height": 2},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_a_record_that_says_it_is_another_entry_s_is_corrupt_and_removed(
    tier: Tier, store: Store[ImageKV], lie: dict[str, Any]
) -> None:
    """Listings, quotas and evictions go by what it says."""
    tier.put(record_of(ENTRY, **lie), 1.0, never_held)
    with store.entries.fetch(KEY, lambda: ENTRY, "read") as fetched:
        assert fetched.outcome == "corrupt"
    store.entries.flush(10)
    assert tier.stats().rejected == {"corrupt": 1}
    assert not tier.contains(KEY.digest)


def test_without_a_layout_any_sound_record_is_taken(tier: Tier, store: Store[ImageKV]) -> None:
    tier.put(record_of(OTHERS["half the layers"]()), 1.0, never_held)
    with store.entries.fetch(KEY, unused) as fetched:
        assert fetched.entry.keys.shape[0] == 1


@pytest.mark.parametrize("mode", ["auto", "read", "rewrite"])
@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
def test_f5_an_entry_that_is_not_finite_is_served_once_and_kept_nowhere(
    tier: Tier, mode: Any, codec: str
) -> None:
    store = assemble([tier], codec_named(codec), MIB)
    key, bad = key_of(1, codec=codec), with_number("keys", float("nan"))()
    for turn in (1, 2):
        with store.entries.fetch(key, lambda: bad, mode) as fetched:
            assert fetched.outcome == "miss"
        store.entries.flush(10)
        stats = store.admin.stats()
        assert stats.writes_dropped == ({} if mode == "read" else {"not_finite": turn})
        assert stats.decoded.entries == 0 and store.admin.entry(key.hex) is None
    with store.entries.fetch(key, lambda: ENTRY) as fetched:
        assert fetched.outcome == "miss"
    with store.entries.fetch(key, unused) as fetched:
        assert fetched.entry.keys.isfinite().all()
    store.entries.close()
