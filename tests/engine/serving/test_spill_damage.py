"""Records of chains that are damaged, foreign or nonsense: a miss each, removed, counted, and the answer is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest
import torch

from engine.messages import CacheOptions
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from store.codecs.segment import SEGMENTS
from store.open import open_store
from store.records.keys import SegmentKey
from store.records.segment import SegmentKV
from tests.engine.asking import Client, ask, restarted, store_settings
from tests.engine.conftest import said, user

FIRST = (said("system", "Read them all, slowly."), user(0, 1, "What is K on the red page?"))
FULL, TRUTH = CacheOptions(policy="full"), CacheOptions(policy="full", chain="off")
Pairs = dict[bytes, bytes]


@contextmanager
def running(loaded: Runtime, folder: Path) -> Iterator[Client]:
    settings = replace(store_settings(folder), memory_bytes=0)
    runtime = restarted(loaded, settings)
    worker = Worker(runtime, Limits(waiting=8, running=3))
    worker.start()
    try:
        yield Client(worker)
    finally:
        worker.stop(0)
        runtime.store.entries.close()
    assert runtime.pool.taken == runtime.chains.stats().leases == 0


def written(loaded: Runtime, folder: Path) -> tuple[str, list[SegmentKey]]:
    """What full prefill answers, and the chain that it left in the store, from its start on."""
    with running(loaded, folder) as client:
        text, _ = client.answer(ask("first", FIRST, cache=FULL))
        runtime = client.worker.runtime
        assert runtime.store.entries.flush(60)
        held = sorted(runtime.chains.every(), key=lambda held: held.segment.start)
        keys = [runtime.segment_key("tenant", one.segment.name, "") for one in held[:-1]]
        return text, [*keys, runtime.segment_key("tenant", held[-1].segment.before, "", open=True)]


def flipped(records: Pairs, pieces: Pairs, digest: bytes) -> None:
    for number in [number for number in pieces if number.startswith(digest)]:
        piece = pieces[number]
        pieces[number] = piece[:40] + bytes([piece[40] ^ 1]) + piece[41:]


def without_pieces(records: Pairs, pieces: Pairs, digest: bytes) -> None:
    for number in [number for number in pieces if number.startswith(digest)]:
        del pieces[number]


def cut_short(records: Pairs, pieces: Pairs, digest: bytes) -> None:
    for number in [number for number in pieces if number.startswith(digest)]:
        pieces[number] = pieces[number][:-9]


def of_another_key(records: Pairs, pieces: Pairs, digest: bytes) -> None:
    """Some other segment's, sound in itself."""
    other = next(key for key in records if key != digest)
    records[digest] = records[other]
    without_pieces(records, pieces, digest)
    for number in [number for number in pieces if number.startswith(other)]:
        pieces[digest + number[32:]] = pieces[number]


def head_damaged(records: Pairs, pieces: Pairs, digest: bytes) -> None:
    records[digest] = records[digest][:-7]


DAMAGES = (flipped, without_pieces, cut_short, of_another_key, head_damaged)


def harm(folder: Path, damage: Callable[[Pairs, Pairs, bytes], None], digest: bytes) -> None:
    """Change a record of a store that nobody has open."""
    with lmdb.open(str(folder), max_dbs=8) as environment:
        databases = [environment.open_db(name) for name in (b"records", b"pieces")]
        with environment.begin(write=True) as transaction:
            before = [{bytes(k): bytes(v) for k, v in transaction.cursor(db=db)} for db in databases]
            after = [dict(pairs) for pairs in before]
            damage(after[0], after[1], digest)
            for db, old, new in zip(databases, before, after, strict=True):
                for key in old.keys() - new.keys():
                    transaction.delete(key, db=db)
                for key, value in new.items():
                    transaction.put(key, value, db=db)


def exists(client: Client, digest: bytes) -> bool:
    store = client.worker.runtime.store
    assert store.entries.flush(60)
    return store.admin.entry(digest.hex()) is not None


@pytest.mark.parametrize("place", [0, 2, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_promise_4_a_damaged_record_of_a_chain_is_a_miss_is_removed_and_counted(
    loaded: Runtime, tmp_path: Path, damage: Callable[[Pairs, Pairs, bytes], None], place: int
) -> None:
    expected, keys = written(loaded, tmp_path)
    digests = [key.digest for key in keys]
    harm(tmp_path, damage, digests[place])
    with running(loaded, tmp_path) as client:
        text, end = client.answer(ask("again", FIRST, cache=replace(FULL, mode="read")))
        assert text == expected
        assert not exists(client, digests[place])
        (disk,) = client.worker.runtime.store.admin.stats().tiers
        # A damaged head may be met by the reader and by who reads the index before it is gone.
        assert sum(disk.rejected.values()) in (1, 2)
        found = len([digest for digest in digests if exists(client, digest)])
        assert found == len(digests) - 1
        first = place == 0
        assert (end.report.chained_exact == 0) == first
        assert end.report.chained_exact < end.usage.prompt_tokens - 1


def rewrite(folder: Path, key: SegmentKey, **changes: Callable[[SegmentKV], object]) -> None:
    """Have a record be written as an engine with a fault might: sound, under the right key, and wrong."""
    store = open_store(replace(store_settings(folder), memory_bytes=0))
    segment = store.segments.load(key, SEGMENTS, None)
    assert isinstance(segment, SegmentKV)
    wrong = replace(segment, **{name: change(segment) for name, change in changes.items()})
    assert store.segments.offer(key, SEGMENTS, SEGMENTS.prepare(wrong), 0.0, replace=True)
    store.entries.close()


WRONG: dict[str, dict[str, Callable[[SegmentKV], object]]] = {
    "another parent": {"before": lambda segment: "ab" * 32},
    "another picture's entry": {"entry": lambda segment: "cd" * 32},
    "another slot": {"start": lambda segment: segment.start + 1},
    "fewer heads": {
        "keys": lambda segment: segment.keys[:, :1].contiguous(),
        "values": lambda segment: segment.values[:, :1].contiguous(),
    },
    "fewer layers": {
        "keys": lambda segment: segment.keys[:1].contiguous(),
        "values": lambda segment: segment.values[:1].contiguous(),
    },
    "another dtype": {
        "keys": lambda segment: segment.keys.half(),
        "values": lambda segment: segment.values.half(),
    },
    "some of the rows": {
        "keys": lambda segment: segment.keys[:, :, :3].contiguous(),
        "values": lambda segment: segment.values[:, :, :3].contiguous(),
        "offsets": lambda segment: segment.offsets[:3],
    },
    "another size of picture": {"tokens": lambda segment: segment.tokens + 1},
    "rows of a larger picture": {
        "tokens": lambda segment: segment.tokens + 5,
        "keys": lambda segment: segment.keys[:, :, :2].contiguous(),
        "values": lambda segment: segment.values[:, :, :2].contiguous(),
        "offsets": lambda segment: torch.tensor([1, segment.tokens + 3]),
    },
    "rows out of order": {"offsets": lambda segment: segment.offsets.flip(0)},
    "rows beyond the end": {"offsets": lambda segment: segment.offsets + 1},
    "words of an image": {"ids": lambda segment: torch.arange(segment.tokens)},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_record_that_is_sound_and_wrong_is_a_miss_is_removed_and_counted(
    loaded: Runtime, tmp_path: Path, wrong: str
) -> None:
    expected, keys = written(loaded, tmp_path)
    second_image = keys[3]
    rewrite(tmp_path, second_image, **WRONG[wrong])
    with running(loaded, tmp_path) as client:
        text, end = client.answer(ask("again", FIRST, cache=replace(FULL, mode="read")))
        assert text == expected
        assert [i.tier for i in end.report.images] == ["chain", None]
        assert not exists(client, second_image.digest)
        assert sum(client.worker.status().chains.lost.values()) == 1


def test_a_text_that_is_not_the_one_of_its_name_is_a_miss_is_removed_and_counted(
    loaded: Runtime, tmp_path: Path
) -> None:
    expected, keys = written(loaded, tmp_path)
    rewrite(tmp_path, keys[0], ids=lambda segment: segment.ids.flip(0))
    with running(loaded, tmp_path) as client:
        text, end = client.answer(ask("again", FIRST, cache=replace(FULL, mode="read")))
        assert (text, end.report.chained_exact) == (expected, 0)
        assert not exists(client, keys[0].digest)
        assert client.worker.status().chains.lost == {"corrupt": 1}
