"""Requests to a worker with a tiny model, and a client that collects what comes back."""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.chains.tree import Chains
from engine.messages import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    ImageInput,
    Message,
    Sampling,
    TextDelta,
)
from engine.passes.kv import KVPool
from engine.serving.admin import AdminDesk
from engine.serving.chain_place import ChainPlace
from engine.serving.load import load_runtime
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import ModelSettings
from store.open import open_store
from store.records.keys import pixel_digest
from store.settings import StoreSettings
from store.types import EvictResult
from tests.engine.conftest import PICTURES, user

WAIT = 60


def image(pixels: np.ndarray, data: bytes | None = None) -> ImageInput:
    height, width, _ = pixels.shape
    data = pixels.tobytes() if data is None else data
    return ImageInput(pixel_digest(width, height, data), width, height, data)


IMAGES = tuple(image(picture) for picture in PICTURES)
QUESTION = (user(0, 1, "What is K on the red page?"),)


def ask(
    name: str, messages: tuple[Message, ...] = QUESTION, images: int = 2, **changes: object
) -> GenerateRequest:
    request = GenerateRequest(name, "tenant", messages, IMAGES[:images], Sampling(max_tokens=6))
    return replace(request, **changes)  # type: ignore[arg-type]


class Client:
    """Collects the events of each request."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def start(self, request: GenerateRequest) -> queue.Queue[Event]:
        events: queue.Queue[Event] = queue.Queue()
        self.worker.submit(request, lambda happened: [events.put(event) for event in happened])
        return events

    def run(self, request: GenerateRequest) -> list[Event]:
        return drain(self.start(request))

    def answer(self, request: GenerateRequest) -> tuple[str, Finished]:
        *events, last = self.run(request)
        assert isinstance(last, Finished), last
        return "".join(event.text for event in events if isinstance(event, TextDelta)), last


def drain(events: queue.Queue[Event]) -> list[Event]:
    seen: list[Event] = []
    while not seen or not isinstance(seen[-1], Finished | Failed):
        seen.append(events.get(timeout=WAIT))
    return seen


def store_settings(folder: Path | None) -> StoreSettings:
    return StoreSettings(path=folder, memory_bytes=1 << 24, disk_bytes=1 << 26, decoded_bytes=1 << 24)


def open_runtime(model: Path, folder: Path | None, chain_bytes: int = 0) -> Runtime:
    store = open_store(store_settings(folder))
    runtime = load_runtime(ModelSettings(str(model), device="cpu"), store, "raw", chain_bytes)
    store.admin.include(ChainPlace(runtime))
    return runtime


def restarted(runtime: Runtime, settings: StoreSettings, chain_bytes: int = 1 << 26) -> Runtime:
    """The same model with nothing in memory, on what a store of `settings` holds."""
    store = open_store(settings)
    family = runtime.family
    pool = KVPool(family.shape, family.dtype, family.device)
    new = replace(runtime, store=store, pool=pool, chains=Chains(chain_bytes))
    store.admin.include(ChainPlace(new))
    return new


def desk(runtime: Runtime) -> AdminDesk:
    """What the operator's routes ask."""
    return AdminDesk(runtime.store.admin, lambda *image: runtime.key_of(*image).hex, runtime.chains)


def clear(runtime: Runtime, tenant: str | None) -> EvictResult:
    result: EvictResult = desk(runtime).answer("clear", (tenant, True))
    return result
