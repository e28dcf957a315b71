"""What requests take from the store and leave there: the cache changes no answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.messages import CacheMode, CacheOptions, GenerateRequest, Sampling
from engine.serving.generation import Generation
from engine.serving.load import load_runtime
from engine.serving.prepared import prepare
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import ModelSettings
from store.errors import CodecError, StoreClosed, StoreError, TierUnavailable
from store.open import open_store
from store.records.buffers import BufferPool
from store.records.entry import ImageKV
from store.records.header import RecordInfo
from store.records.record import Encoded, build
from store.records.tensors import FIELDS, buffer_of
from store.residency.eviction import never_held
from store.settings import StoreSettings
from store.types import EntryFilter
from tests.engine.asking import IMAGES, QUESTION, WAIT, Client, ask, image, open_runtime
from tests.engine.conftest import said, user


def test_promise_2_the_cache_never_changes_an_answer(client: Client, tiny_path: Path, tmp_path: Path) -> None:
    """Cold, from the decoded cache, from disk in another process' place, and without any store: the same tokens."""
    shifted = (said("system", "Slowly."), user(0, 1, "What is K?"))
    cold, cold_end = client.answer(ask("cold", shifted))
    warm, warm_end = client.answer(ask("warm", shifted))
    bypass, bypass_end = client.answer(ask("bypass", shifted, cache=CacheOptions(mode="bypass")))
    assert [i.outcome for i in cold_end.report.images] == ["miss", "miss"]
    assert [i.tier for i in warm_end.report.images] == ["decoded", "decoded"]
    assert [i.outcome for i in bypass_end.report.images] == ["bypass", "bypass"]
    client.worker.runtime.store.entries.flush(WAIT)
    client.worker.runtime.store.entries.close()
    again = open_runtime(tiny_path, tmp_path / "store")
    worker = Worker(again)
    worker.start()
    disk, disk_end = Client(worker).answer(ask("disk", shifted))
    worker.stop(0)
    again.store.entries.close()
    assert [i.tier for i in disk_end.report.images] == ["lmdb", "lmdb"]
    assert cold == warm == bypass == disk
    refreshed = {
        tuple(i.refreshed for i in end.report.images) for end in (cold_end, warm_end, bypass_end, disk_end)
    }
    assert len(refreshed) == 1


@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
def test_promise_2_holds_for_every_codec_and_mode(tiny_path: Path, tmp_path: Path, codec: str) -> None:
    settings = StoreSettings(path=tmp_path, memory_bytes=1 << 24, decoded_bytes=1 << 24, codec=codec)
    shifted = (said("system", "Slowly."), user(0, 1, "What is K?"))
    answers = []
    for run in range(2):
        store = open_store(settings)
        worker = Worker(load_runtime(ModelSettings(str(tiny_path), device="cpu"), store, codec))
        worker.start()
        for mode in ("auto", "read", "bypass", "rewrite"):
            request = ask(f"{run}{mode}", shifted, cache=CacheOptions(mode=mode))  # type: ignore[arg-type]
            answers.append(Client(worker).answer(request)[0])
        worker.stop(0)
        store.entries.close()
    assert len(set(answers)) == 1


def test_report_and_usage_add_up(client: Client) -> None:
    client.answer(ask("first", images=1, messages=(user(0, "K"),)))
    _, end = client.answer(ask("second", (said("system", "x"), user(0, 1, "K?"))))
    report, usage = end.report, end.usage
    assert [i.outcome for i in report.images] == ["hit", "miss"]
    hit, miss = report.images
    assert report.visual_tokens == report.reused + report.compiled + report.refreshed == 49
    assert report.refreshed == hit.refreshed + miss.refreshed == 5
    assert usage.cached_tokens == report.reused == hit.tokens - hit.refreshed > 0
    assert report.compiled == miss.tokens - miss.refreshed > 0
    assert usage.cache_write_tokens == report.images[1].tokens
    assert usage.image_tokens == 49
    assert 0 <= end.timings.queue <= end.timings.first_token <= end.timings.total


@pytest.mark.parametrize("mode", ["auto", "read", "bypass", "rewrite"])
def test_u3_what_is_compiled_for_a_request_is_not_reused(client: Client, mode: CacheMode) -> None:
    if mode == "rewrite":
        client.answer(ask("before"))
    _, end = client.answer(ask("cold", cache=CacheOptions(mode=mode)))
    report = end.report
    assert (report.reused, end.usage.cached_tokens) == (0, 0)
    assert report.compiled == report.visual_tokens - report.refreshed > 0


def test_policy_full_touches_no_entry(client: Client, runtime: Runtime) -> None:
    _, end = client.answer(ask("full", cache=CacheOptions(policy="full")))
    assert [i.outcome for i in end.report.images] == ["bypass", "bypass"]
    assert end.report.refreshed == end.report.visual_tokens and end.usage.cached_tokens == 0
    assert (end.report.reused, end.report.compiled) == (0, 0)
    assert runtime.store.admin.stats().compiles == 0


def test_the_same_image_twice_is_compiled_once(client: Client, runtime: Runtime) -> None:
    twice = GenerateRequest("t", "tenant", QUESTION, (IMAGES[0], IMAGES[0]), Sampling(max_tokens=1))
    _, end = client.answer(twice)
    assert runtime.store.admin.stats().compiles == 1
    assert end.usage.cache_write_tokens == IMAGES[0].width * IMAGES[0].height // 28**2
    assert len({i.key for i in end.report.images}) == 1
    assert [i.same_as for i in end.report.images] == [None, 0]


@pytest.mark.parametrize("policy", ["conduit", "full"])
def test_an_unchanged_screenshot_is_told_as_such(client: Client, policy: str) -> None:
    """In later turns as well, and always as the first one that had these pixels."""
    turns = (user(0, "K?"), said("assistant", "four"), user(1, 2, 3, "And L?"))
    images = (IMAGES[1], IMAGES[0], IMAGES[1], IMAGES[1])
    request = GenerateRequest(
        "t", "tenant", turns, images, Sampling(max_tokens=1), CacheOptions(policy=policy)
    )
    _, end = client.answer(request)
    assert [i.same_as for i in end.report.images] == [None, None, 0, 0]


def test_c1_equal_placeholders_do_not_make_equal_images(client: Client) -> None:
    """Images of one size and one question: each is a miss of its own, and each has its own answer state."""
    ends = []
    for index, level in enumerate((0, 128, 255)):
        square = image(np.full((112, 112, 3), level, np.uint8))
        request = GenerateRequest(
            f"c{index}", "tenant", (user(0, "colour?"),), (square,), Sampling(max_tokens=1)
        )
        ends.append(client.answer(request)[1])
    assert [end.usage.cached_tokens for end in ends] == [0, 0, 0]
    assert len({end.report.images[0].key for end in ends}) == 3


def test_d6_another_tenant_does_not_hit(client: Client) -> None:
    client.answer(ask("a"))
    _, end = client.answer(ask("b", tenant="other"))
    assert [i.outcome for i in end.report.images] == ["miss", "miss"]


def test_a_pinned_image_outlives_eviction(client: Client, runtime: Runtime) -> None:
    client.answer(ask("pinned", (user(0, "K"),), 1, cache=CacheOptions(pin_seconds=600)))
    other = GenerateRequest("plain", "tenant", (user(0, "K"),), (IMAGES[1],), Sampling(max_tokens=1))
    client.answer(other)
    runtime.store.entries.flush(WAIT)
    evicted = runtime.store.admin.evict(EntryFilter())
    assert len(evicted.keys) == 1 and evicted.skipped_pinned == 1
    _, end = client.answer(ask("again", (user(0, "K"),), 1))
    assert end.report.images[0].outcome == "hit"


def test_stale_buffers_never_reach_an_answer(client: Client, runtime: Runtime) -> None:
    question = (user("What is K?", 0, 1),)
    before, _ = client.answer(ask("clean", question))
    for poison in (float("nan"), 7.0):
        kv = runtime.pool.take(300)
        with torch.inference_mode():  # as the worker that made them
            kv.keys.fill_(poison)
            kv.values.fill_(poison)
        runtime.pool.give_back(kv)
        assert client.answer(ask(f"poisoned {poison}", question))[0] == before


def other_entries(entry: ImageKV) -> dict[str, ImageKV]:
    """What another model, or a broken one, may have left under the same name."""
    layers, heads, tokens, size = entry.keys.shape
    merged = (layers, 1, tokens, heads * size)
    half = layers // 2
    return {
        "heads merged": replace(entry, keys=entry.keys.reshape(merged), values=entry.values.reshape(merged)),
        "half the layers": replace(
            entry, keys=entry.keys[:half], values=entry.values[:half], value_norms=entry.value_norms[:half]
        ),
        "NaN": replace(entry, keys=torch.full_like(entry.keys, float("nan"))),
        "another dtype": replace(entry, keys=entry.keys.half(), values=entry.values.half()),
        "a token too few": replace(
            entry,
            keys=entry.keys[:, :, 1:].contiguous(),
            values=entry.values[:, :, 1:].contiguous(),
            features=entry.features[:, 1:].contiguous(),
            value_norms=entry.value_norms[:, 1:].contiguous(),
        ),
    }


@pytest.mark.parametrize(
    "other", ["heads merged", "half the layers", "NaN", "another dtype", "a token too few"]
)
def test_f5_a_stored_entry_that_the_model_cannot_use_is_computed_anew(
    client: Client, runtime: Runtime, other: str
) -> None:
    question = (user(0, "What is K?"),)
    right, _ = client.answer(ask("first", question, 1))
    key, store = runtime.key("tenant", IMAGES[0]), runtime.store
    with store.entries.fetch(key, lambda: pytest.fail("it is stored")) as fetched:
        planted = other_entries(fetched.entry)[other]
    store.entries.flush(WAIT)
    info = RecordInfo.of(key, planted.tokens, 1.0, 1.0)
    encoded = Encoded([buffer_of(name, getattr(planted, name)) for name in FIELDS])
    record = build(key.digest, "raw/1", encoded, info, BufferPool(0))
    for tier in store.entries._stack.tiers:
        tier.put(record, 1.0, never_held, replace=True)
    store.admin.evict(EntryFilter(tier="decoded"))
    answer, end = client.answer(ask("second", question, 1))
    assert [image.outcome for image in end.report.images] == ["outdated"]
    assert answer == right
    _, end = client.answer(ask("third", question, 1))
    assert [image.outcome for image in end.report.images] == ["hit"]
    assert [tier.rejected for tier in store.admin.stats().tiers] == [{"outdated": 1}] * 2


def test_a_policy_that_has_its_own_ratio_is_reported_with_it(client: Client, runtime: Runtime) -> None:
    assert runtime.choose(CacheOptions(policy="reuse", refresh_ratio=0.5)).ratio == 0
    assert runtime.choose(CacheOptions(policy="full", refresh_ratio=0.5)).ratio == 1
    _, end = client.answer(ask("r", cache=CacheOptions(policy="reuse", refresh_ratio=0.5)))
    assert (end.report.refresh_ratio, end.report.refreshed) == (0, 0)


def test_what_read_mode_computed_is_not_said_to_be_written(client: Client) -> None:
    _, read = client.answer(ask("read", cache=CacheOptions(mode="read")))
    assert [image.outcome for image in read.report.images] == ["miss", "miss"]
    assert read.usage.cache_write_tokens == 0
    _, auto = client.answer(replace(ask("auto"), tenant="another"))
    assert auto.usage.cache_write_tokens == auto.usage.image_tokens


@pytest.mark.parametrize(
    "error", [StoreClosed("closed"), CodecError("no such shape"), TierUnavailable("timeout")], ids=repr
)
@pytest.mark.parametrize("mode", ["auto", "read", "rewrite"])
def test_promise_5_a_store_that_fails_costs_its_entries_and_not_the_answer(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, mode: CacheMode, error: StoreError
) -> None:
    shifted = (said("system", "Slowly."), user(0, 1, "What is K?"))
    expected, _ = client.answer(ask("whole", shifted, cache=CacheOptions(mode="bypass")))
    fetch = runtime.store.entries.fetch

    def failing(key: object, compile_entry: object, mode: CacheMode, *others: object) -> object:
        if mode != "bypass":
            raise error
        return fetch(key, compile_entry, mode, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime.store.entries, "fetch", failing)
    monkeypatch.setattr(runtime.store.admin, "pin", lambda *_: (_ for _ in ()).throw(error))
    text, end = client.answer(ask("broken", shifted, cache=CacheOptions(mode=mode, pin_seconds=9.0)))
    assert text == expected
    assert [image.outcome for image in end.report.images] == ["bypass", "bypass"]


def test_running_streams_have_their_turn_between_two_images_that_are_computed(
    runtime: Runtime,
) -> None:
    def pieces(**changes: object) -> int:
        prepared = prepare(runtime, ask("r", **changes), 0.0)  # type: ignore[arg-type]
        generation = Generation(runtime, prepared, lambda text: None)
        with torch.inference_mode():
            count = sum(1 for _ in generation.prefill())
        generation.close()
        return count

    assert pieces() == 2
    assert pieces() == 0, "both are ready"
    assert pieces(cache=CacheOptions(policy="full")) == 2
    assert pieces(cache=CacheOptions(mode="rewrite")) == 2
