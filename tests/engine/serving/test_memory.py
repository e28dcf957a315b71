"""Large buffers go when they have been used, however a request ends: with the cyclic collector off, nothing keeps its
pixels, KV or entries."""

from __future__ import annotations

import gc
import logging
import queue
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.messages import (
    CacheOptions,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Sampling,
    TextDelta,
)
from engine.passes.kv import KVPool, RequestKV
from engine.serving.generation import Generation
from engine.serving.load import load_runtime
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits, ModelSettings
from store.open import open_store
from store.settings import StoreSettings
from tests.engine.asking import WAIT, Client, drain, image
from tests.engine.conftest import said, user

LONG = Sampling(max_tokens=3000)
QUESTION = (said("system", "Slowly."), user(0, 1, "What is K?"))


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """And no log, since the one of the tests keeps tracebacks and all that stands in them."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


class Place:
    """A worker whose store and pool keep nothing, and an account of what its requests leave behind."""

    def __init__(self, runtime: Runtime, patch: pytest.MonkeyPatch, shadow_share: float = 0.0) -> None:
        family = runtime.family
        pool = KVPool(family.shape, family.dtype, family.device, keep=0)
        self.patch = patch
        self.runtime = replace(runtime, pool=pool)
        self.worker = Worker(self.runtime, Limits(waiting=2, running=1), shadow_share)
        self.client = Client(self.worker)
        self._pixels = [np.full((56, 56, 3), level, np.uint8).tobytes() for level in (1, 2)]
        self._made: list[weakref.ref[Any]] = []
        self._watch(RequestKV)
        self._watch(Generation)
        self._watch_entries()
        self._before = self._references()

    def request(self, name: str = "r", **changes: object) -> GenerateRequest:
        images = tuple(
            image(np.frombuffer(pixels, np.uint8).reshape(56, 56, 3), pixels) for pixels in self._pixels
        )
        made = GenerateRequest(name, "tenant", QUESTION, images, Sampling(max_tokens=6))
        return replace(made, **changes)  # type: ignore[arg-type]

    def start(self, **changes: object) -> queue.Queue[Event]:
        return self.client.start(self.request(**changes))  # type: ignore[arg-type]

    def while_encoding(self, action: Callable[[], object]) -> None:
        """Do something at each image's turn."""
        encode = self.runtime.family.encode

        def interrupted(pixels: np.ndarray) -> object:
            action()
            return encode(pixels)

        self.patch.setattr(self.runtime.family, "encode", interrupted)

    def left(self) -> list[str]:
        """What is still there of all that requests have held."""
        alive = [type(there).__name__ for made in self._made if (there := made()) is not None]
        return alive + ["pixels"] * (self._references() > self._before)

    @property
    def pixels_are_free(self) -> bool:
        return self._references() == self._before

    def _references(self) -> int:
        return sum(map(sys.getrefcount, self._pixels))

    def _watch(self, kind: type) -> None:
        begin = kind.__init__  # type: ignore[misc]

        def watched(made: object, *args: object, **named: object) -> None:
            self._made.append(weakref.ref(made))
            begin(made, *args, **named)

        self.patch.setattr(kind, "__init__", watched)

    def _watch_entries(self) -> None:
        from engine.passes.compile import compile_image

        def watched(*args: Any) -> Any:
            entry = compile_image(*args)
            self._made.append(weakref.ref(entry.keys))
            return entry

        self.patch.setattr("engine.serving.entries.compile_image", watched)


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("no memory")


def end_of(events: queue.Queue[Event]) -> str:
    last = drain(events)[-1]
    return last.code if isinstance(last, Failed) else "finished"


def done(place: Place) -> str:
    return end_of(place.start())


def done_by_full_prefill(place: Place) -> str:
    return end_of(place.start(cache=CacheOptions(policy="full")))


def done_with_the_first_token(place: Place) -> str:
    return end_of(place.start(sampling=Sampling(max_tokens=1)))


def refused(place: Place) -> str:
    return end_of(place.start(sampling=Sampling(max_tokens=10**6)))


def fails_in_preparing(place: Place) -> str:
    place.patch.setattr(place.runtime.prompt, "layout", fail)
    return end_of(place.start())


def fails_in_encoding(place: Place) -> str:
    place.patch.setattr(place.runtime.family, "encode", fail)
    return end_of(place.start())


def fails_in_the_refresh_pass(place: Place) -> str:
    place.patch.setattr("engine.serving.generation.Prefill.reuse", fail)
    return end_of(place.start())


def fails_in_decoding(place: Place) -> str:
    place.patch.setattr("engine.serving.live.decode_step", fail)
    return end_of(place.start())


def fails_in_sampling(place: Place) -> str:
    place.patch.setattr("engine.serving.answering.Sampler.draw", fail)
    return end_of(place.start())


def aborted_in_prefill(place: Place) -> str:
    place.while_encoding(lambda: place.worker.abort("r"))
    return end_of(place.start())


def aborted_while_decoding(place: Place) -> str:
    events = place.start(sampling=LONG)
    wait_for_text(events)
    place.worker.abort("r")
    return end_of(events)


def aborted_while_waiting(place: Place) -> str:
    waiting: list[queue.Queue[Event]] = []

    def meanwhile() -> None:
        if not waiting:
            waiting.append(place.start(name="w"))
            place.worker.abort("w")

    place.while_encoding(meanwhile)
    assert end_of(place.start()) == "finished"
    return end_of(waiting[0])


def late_in_prefill(place: Place) -> str:
    place.while_encoding(lambda: time.sleep(0.2))
    return end_of(place.start(timeout_seconds=0.1))


def late_while_decoding(place: Place) -> str:
    return end_of(place.start(sampling=LONG, timeout_seconds=0.3))


def one_too_many(place: Place) -> str:
    refused = [place.start(name=f"more{number}") for number in range(8)]
    return max(map(end_of, refused))


def too_large(place: Place) -> str:
    place.patch.setattr("engine.serving.live.Scheduler.fits", lambda *_: False)
    return end_of(place.start())


def stopped(place: Place) -> str:
    events = place.start(sampling=LONG)
    wait_for_text(events)
    place.worker.stop(0)
    return end_of(events)


ENDINGS: dict[Callable[[Place], str], str] = {
    done: "finished",
    done_by_full_prefill: "finished",
    done_with_the_first_token: "finished",
    refused: "context_length_exceeded",
    fails_in_preparing: "internal_error",
    fails_in_encoding: "internal_error",
    fails_in_the_refresh_pass: "internal_error",
    fails_in_decoding: "internal_error",
    fails_in_sampling: "internal_error",
    aborted_in_prefill: "aborted",
    aborted_while_decoding: "aborted",
    aborted_while_waiting: "aborted",
    late_in_prefill: "request_timeout",
    late_while_decoding: "request_timeout",
    one_too_many: "queue_full",
    too_large: "kv_too_large",
    stopped: "engine_stopped",
}


@pytest.fixture(scope="module")
def forgetful(tiny_path: Path) -> Runtime:
    """Its store has no tier."""
    store = open_store(StoreSettings(decoded_bytes=0))
    return load_runtime(ModelSettings(str(tiny_path), device="cpu"), store, "raw")


@pytest.fixture
def place(forgetful: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(forgetful, monkeypatch)
    place.worker.start()
    yield place
    place.worker.stop(0)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_promise_6_nothing_large_is_left_however_a_request_ends(
    place: Place, ending: Callable[[Place], str]
) -> None:
    assert ending(place) == ENDINGS[ending]
    eventually_free(place)


def test_pixels_go_when_prefill_has_used_them(place: Place) -> None:
    events = place.start(sampling=LONG)
    wait_for_text(events)
    assert place.pixels_are_free
    place.worker.abort("r")
    drain(events)


def test_a_shadow_check_keeps_pixels_until_it_is_done(
    forgetful: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(forgetful, monkeypatch, shadow_share=1.0)
    place.worker.start()
    assert done(place) == "finished"
    eventually_free(place)
    assert place.worker.status().shadow.checked == 1
    place.worker.stop(0)


def eventually_free(place: Place) -> None:
    """The terminal event is out before the thread has left the functions that made it."""
    end = time.monotonic() + 5
    while place.left() and time.monotonic() < end:
        time.sleep(0.005)
    assert place.left() == []


def wait_for_text(events: queue.Queue[Event]) -> None:
    while not isinstance(event := events.get(timeout=WAIT), TextDelta):
        assert not isinstance(event, Finished | Failed), event
