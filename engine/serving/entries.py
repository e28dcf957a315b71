"""What a request takes from the store, leased for as long as it is needed; what is not there is computed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from engine.messages import GenerateRequest, ImageInput
from engine.passes.compile import compile_image, entry_layout
from engine.passes.forward import Work
from engine.serving.prepared import Prepared, picture
from engine.serving.runtime import Runtime
from store.errors import StoreError
from store.records.entry import ImageKV, Layout
from store.records.keys import VisualKey
from store.tiered import Fetched, Mode

log = logging.getLogger(__name__)


class Entries:
    """The entries of one request by the digest of their image. Holds no pixels."""

    def __init__(self, runtime: Runtime, work: Work) -> None:
        self._runtime, self._work = runtime, work
        self._fetched: dict[bytes, Fetched[ImageKV]] = {}

    def features(self, prepared: Prepared, index: int) -> torch.Tensor:
        """Vision features of one image, from its entry where the policy uses the store."""
        runtime, request, span = self._runtime, prepared.request, prepared.shapes[index]
        image = request.images[index]
        pixels = picture(image)
        if not prepared.choice.policy.uses_store:
            return runtime.family.encode(pixels)

        def compile_entry() -> ImageKV:
            encoded, prefix = runtime.family.encode(pixels), runtime.prompt.prefix_ids
            return compile_image(runtime.family, runtime.pool, prefix, encoded, span, self._work)

        key, layout = runtime.key(request.tenant, image), entry_layout(runtime.family, span)
        fetched = self._fetch(key, compile_entry, request.cache.mode, layout)
        self._fetched[image.digest] = fetched
        return fetched.entry.features.to(runtime.family.device)

    def of(self, digest: bytes) -> Fetched[ImageKV] | None:
        """None for an image that was not asked for."""
        return self._fetched.get(digest)

    def took_long(self, digest: bytes) -> bool:
        """Whether an image was computed, or read from a tier: then running streams have their turn before the next."""
        fetched = self._fetched.get(digest)
        return fetched is None or fetched.tier != "decoded"

    def pin(self, request: GenerateRequest, image: ImageInput, seconds: float) -> None:
        """A pin that cannot be kept costs the entry's protection, not the answer."""
        key = self._runtime.key(request.tenant, image).hex
        try:
            self._runtime.store.admin.pin(key, seconds)
        except StoreError as error:
            log.warning("entry %s could not be pinned: %s", key[:16], error)

    def release(self) -> None:
        for fetched in self._fetched.values():
            fetched.release()
        self._fetched.clear()

    def _fetch(
        self, key: VisualKey, compile_entry: Callable[[], ImageKV], mode: Mode, layout: Layout
    ) -> Fetched[ImageKV]:
        """What the store cannot do is computed, and not kept: it is an accelerator, never a dependency."""
        entries = self._runtime.store.entries
        try:
            return entries.fetch(key, compile_entry, mode, layout)
        except StoreError:
            log.exception("the store failed for entry %s, which is computed", key.hex[:16])
            return entries.fetch(key, compile_entry, "bypass", layout)


class Gone(Exception):
    """The entry of an image is not in the store any more, and there is nothing to compute it from."""


def stored(runtime: Runtime, key: VisualKey, layout: Layout | None = None) -> Fetched[ImageKV]:
    """An entry as it is stored. Raises `Gone`."""
    try:
        return runtime.store.entries.fetch(key, _gone, "read", layout)
    except StoreError as error:
        raise Gone from error


def _gone() -> ImageKV:
    raise Gone
