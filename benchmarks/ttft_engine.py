"""The arms of the TTFT benchmark inside the engine: one loaded model, one real store, one prompt behind a prefix."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cost_model
from benchmarks.result import NotMeasured
from engine.families.base import ModelShape
from engine.messages import (
    CacheOptions,
    GenerateRequest,
    ImageInput,
    ImagePart,
    Message,
    Part,
    Sampling,
    TextPart,
)
from engine.passes.forward import Work
from engine.passes.refresh import Prefill
from engine.policies.base import make_policy
from engine.prompt.layout import PromptLayout
from engine.serving.generation import Generation
from engine.serving.load import load_runtime
from engine.serving.prepared import prepare
from engine.serving.runtime import Runtime
from engine.settings import ModelSettings
from store.open import open_store
from store.records.entry import ImageKV
from store.records.keys import pixel_digest
from store.settings import StoreSettings

SYSTEM = " ".join(["You are a careful reader. Answer from the pages, please."] * 2)
QUESTION = " ".join(["Please read the pages with care, look at the red page and tell me K."] * 3)
GENEROUS = 8 << 30


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: seconds to the first token, FLOPs that were executed, visual tokens computed, image by image."""

    seconds: float
    flops: int
    refreshed: tuple[int, ...] = ()


class EngineArms:
    """Everything that is measured in this process. `edge` is the side of an image in pixels."""

    def __init__(
        self, folder: Path, model: Path, device: str, dtype: str, count: int, edge: int, ratio: float
    ) -> None:
        self._settings = StoreSettings(folder / f"store-{count}", GENEROUS, 2 * GENEROUS, GENEROUS)
        settings = ModelSettings(str(model), device=device, dtype=dtype)
        self.runtime: Runtime = load_runtime(settings, open_store(self._settings), self._settings.codec)
        if self.runtime.refused is not None:
            raise NotMeasured(f"the model may not reuse: {self.runtime.refused}")
        self.ratio = ratio
        self._edge = edge
        self._seeds = itertools.count(count)
        self._images = tuple(noise(seed, edge) for seed in range(count))
        family = self.runtime.family
        self.features = [family.encode(pixels_of(image)) for image in self._images]
        self._default = self._request(self._images[:1], None, CacheOptions(refresh_ratio=ratio))
        self.warm_request = self._request(self._images, SYSTEM, CacheOptions(refresh_ratio=ratio))
        self.layout: PromptLayout = prepare(self.runtime, self.warm_request, 0.0).layout
        self.policy = make_policy("conduit", {})

    @property
    def shape(self) -> ModelShape:
        return self.runtime.family.shape

    def sizes(self) -> dict[str, int]:
        layout = self.layout
        text = layout.length - layout.visual_tokens
        return {
            "tokens": layout.length,
            "visual": layout.visual_tokens,
            "text": text,
            "query": len(layout.query.ids),
        }

    def describe(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self.sizes().items())

    def all(self) -> dict[str, Callable[[], Sample]]:
        """Arms by name, in the order in which they take turns."""
        request, cache = self.warm_request, self.warm_request.cache
        return {
            "full_vision_cold": lambda: self._ask(replace(request, cache=CacheOptions(policy="full"))),
            "full_vision_warm": self.full_with_features,
            "warm": lambda: self._ask(request),
            "reuse": lambda: self._ask(replace(request, cache=CacheOptions(policy="reuse"))),
            "paper_preset": lambda: self._ask(
                replace(request, cache=replace(cache, policy="conduit", options=PAPER))
            ),
            "cold": self._cold,
            "one_image_default_prompt": lambda: self._ask(self._default),
            "one_image_reuse": lambda: self._ask(replace(self._default, cache=CacheOptions(policy="reuse"))),
        }

    def by_tier(self) -> Iterator[tuple[str, Callable[[], Sample]]]:
        """The warm arm again, with the entries read from one tier after the other: nothing decoded is kept."""
        for name, memory in (("memory", GENEROUS), ("disk", 0)):
            self._reopen(replace(self._settings, memory_bytes=memory, decoded_bytes=0))
            yield name, lambda: self._ask(self.warm_request)
        self._reopen(self._settings)

    def full_with_features(self) -> Sample:
        """Full prefill without the vision tower."""
        kv = self.runtime.pool.take(self.layout.length + 1)
        work = Work()
        try:
            began = time.perf_counter()
            Prefill(self.runtime.family, kv, self.layout, self.features, work).full().logits.argmax().item()
            return Sample(time.perf_counter() - began, work.flops)
        finally:
            self.runtime.pool.give_back(kv)

    def formulas(self, refreshed: Sequence[int]) -> dict[str, float]:
        """FLOPs by the closed formula, arm by arm, for as many refreshed tokens of each image."""
        shape, layout = self.shape, self.layout
        layers = shape.score_layers
        reuse = cost_model.refresh(shape, layout, [0] * len(layout.spans))
        warm = cost_model.scoring(shape, layout, layers) + cost_model.refresh(shape, layout, refreshed)
        prefix = len(self.runtime.prompt.prefix_ids)
        compiling = cost_model.compiling(shape, prefix, [span.tokens for span in layout.spans])
        full = cost_model.full(shape, layout.length)
        return {"full_vision_warm": full, "warm": warm, "reuse": reuse, "cold": compiling + warm}

    def entries(self) -> list[ImageKV]:
        """The warm images' entries, which must be there."""
        found = []
        for image in self._images:
            with self.runtime.store.entries.fetch(
                self.runtime.key("bench", image), _must_be_there
            ) as fetched:
                found.append(fetched.entry)
        return found

    def close(self) -> None:
        self.runtime.store.entries.close()

    def _cold(self) -> Sample:
        """Images never seen before. Waits until they are written, so that writing costs no other arm its time."""
        fresh = tuple(noise(next(self._seeds), self._edge) for _ in self._images)
        sample = self._ask(self._request(fresh, SYSTEM, self.warm_request.cache))
        for image in fresh:
            self.runtime.store.admin.delete(self.runtime.key("bench", image).hex)
        self.runtime.store.entries.flush()
        return sample

    def _ask(self, request: GenerateRequest) -> Sample:
        """What the worker does up to the first token."""
        began = time.monotonic()
        prepared = prepare(self.runtime, request, began)
        generation = Generation(self.runtime, prepared, emit=lambda _: None, progress=lambda: None)
        try:
            for _ in generation.prefill():
                pass
            taken = time.monotonic() - began
        finally:
            generation.close()
        if generation.finished is None or generation.finished.report.fallback is not None:
            raise NotMeasured("a request did not run as it was asked for")
        refreshed = tuple(image.refreshed for image in generation.finished.report.images)
        return Sample(taken, generation.work.flops, refreshed)

    def _request(
        self, images: Sequence[ImageInput], system: str | None, cache: CacheOptions
    ) -> GenerateRequest:
        parts: tuple[Part, ...] = (*(ImagePart(i) for i in range(len(images))), TextPart(QUESTION))
        messages = [Message("user", parts)]
        if system is not None:
            messages.insert(0, Message("system", (TextPart(system),)))
        return GenerateRequest(
            "bench", "bench", tuple(messages), tuple(images), Sampling(max_tokens=1), cache
        )

    def _reopen(self, settings: StoreSettings) -> None:
        self.runtime.store.entries.flush()
        self.runtime.store.entries.close()
        self.runtime = replace(self.runtime, store=open_store(settings))


PAPER = {"preset": "paper"}


def noise(seed: int, edge: int) -> ImageInput:
    """A picture of noise: no two are alike, and none compresses well."""
    pixels = np.random.default_rng(seed).integers(0, 256, (edge, edge, 3), dtype=np.uint8).tobytes()
    return ImageInput(pixel_digest(edge, edge, pixels), edge, edge, pixels)


def pixels_of(image: ImageInput) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(image.pixels, dtype=np.uint8).reshape(image.height, image.width, 3)


def _must_be_there() -> ImageKV:
    raise NotMeasured("an entry that was warmed is missing")
