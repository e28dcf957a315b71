"""The images of one request: each reference fetched and decoded once, in the order they were given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from engine.messages import ImageInput
from service.conversation import ImageReference, PlacedImage
from service.errors import ImageError
from service.images.data_url import decode_base64, decode_data_url
from service.images.decode import Decoder
from service.images.fetch import Fetcher

_AT_ONCE: Final = 4
"""Images of one request in work at the same time: more would let one request hold many decoded pictures at
once."""


class ImageObserver(Protocol):
    """Told how long things took and what failed; metrics in the service, a list in tests."""

    def image_fetched(self, seconds: float) -> None: ...

    def image_decoded(self, seconds: float) -> None: ...

    def image_failed(self, code: str) -> None: ...


class ImageLoader:
    """`max_pixels` bounds the sum over one request."""

    def __init__(
        self, fetcher: Fetcher, decoder: Decoder, observer: ImageObserver, *, max_bytes: int, max_pixels: int
    ) -> None:
        self._fetcher = fetcher
        self._decoder = decoder
        self._observer = observer
        self._max_bytes = max_bytes
        self._max_pixels = max_pixels

    async def load(self, places: Sequence[PlacedImage]) -> tuple[ImageInput, ...]:
        """One input a place; places with the same reference share it. The first failure is raised, as an
        `ImageError` that names its place, and ends the work on the others."""
        slots, budget = asyncio.Semaphore(_AT_ONCE), _PixelBudget(self._max_pixels)
        tasks: dict[ImageReference, asyncio.Task[ImageInput]] = {}
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for number, place in enumerate(places, start=1):
                    if place.reference not in tasks:
                        work = self._load_one(place, number, slots, budget)
                        tasks[place.reference] = group.create_task(work)
        except* ImageError as failures:
            failure = failures.exceptions[0]
        if failure is not None:  # raised in the `except*` above it would come out inside a group
            raise failure
        return tuple(tasks[place.reference].result() for place in places)

    async def _load_one(
        self, place: PlacedImage, number: int, slots: asyncio.Semaphore, budget: _PixelBudget
    ) -> ImageInput:
        try:
            async with slots:
                image = await self._read(place.reference)
                budget.take(image)
                return image
        except ImageError as error:
            self._observer.image_failed(error.code)
            raise error.at(number, place.param) from None

    async def _read(self, reference: ImageReference) -> ImageInput:
        text = reference.text.strip()
        head = text[:8].lower()
        if reference.inline:
            return await self._decode(lambda: decode_base64(text.encode(), self._max_bytes))
        if head.startswith("data:"):
            return await self._decode(lambda: decode_data_url(text, self._max_bytes))
        if not head.startswith(("http://", "https://")):
            raise ImageError("invalid_image_url", "it is neither an http(s) URL nor a data URL.")
        started = time.monotonic()
        data = (await self._fetcher.fetch(text)).data or b""
        self._observer.image_fetched(time.monotonic() - started)
        return await self._decode(lambda: data)

    async def _decode(self, content: Callable[[], bytes]) -> ImageInput:
        started = time.monotonic()
        image = await self._decoder.run(lambda: self._decoder.decode(content()))
        self._observer.image_decoded(time.monotonic() - started)
        return image


class _PixelBudget:
    """What the pictures of one request may add up to."""

    def __init__(self, pixels: int) -> None:
        self._limit = pixels
        self._left = pixels

    def take(self, image: ImageInput) -> None:
        self._left -= image.width * image.height
        if self._left < 0:
            raise ImageError(
                "image_too_large", f"with it the request has more than {self._limit} pixels in all."
            )
