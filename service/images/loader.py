"""The images of one request: each reference fetched and decoded once, in the order they were given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from engine.messages import ImageInput
from service.errors import ImageError
from service.images.data_url import decode_base64, decode_data_url
from service.images.decode import Decoder
from service.images.fetch import Fetcher, Validators
from service.images.known_images import KnownImage, UploadIndex, UrlIndex
from service.images.reference import ImageReference, PlacedImage

_AT_ONCE: Final = 4
"""Images of one request in work at the same time: more would let one request hold many decoded pictures at
once."""
_HASHED_AT_ONCE: Final = 256 * 1024
"""Of what is no longer, the digest takes less than handing it to a thread would."""


class ImageObserver(Protocol):
    """Told how long things took and what failed; metrics in the service, a list in tests."""

    def image_fetched(self, seconds: float) -> None: ...

    def image_not_modified(self) -> None: ...

    def image_decoded(self, seconds: float) -> None: ...

    def image_failed(self, code: str) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Bytes of one image as sent, pixels of all images of one request."""

    image_bytes: int
    request_pixels: int


@dataclass(frozen=True, slots=True)
class Known:
    """What may spare work: pictures by URL, and by the file that they were decoded from."""

    urls: UrlIndex
    uploads: UploadIndex


class ImageLoader:
    """What loads the images of all requests; `limits` are those of one request."""

    def __init__(
        self, fetcher: Fetcher, decoder: Decoder, known: Known, observer: ImageObserver, limits: LoadLimits
    ) -> None:
        self._fetcher = fetcher
        self._decoder = decoder
        self._urls, self._uploads = known.urls, known.uploads
        self._observer = observer
        self._max_bytes = limits.image_bytes
        self._max_pixels = limits.request_pixels

    async def load(self, places: Sequence[PlacedImage], tenant: str) -> tuple[ImageInput, ...]:
        """One input a place; places with the same reference share it. The first failure is raised, as an
        `ImageError` that names its place, and ends the work on the others."""
        request = _Request(tenant, asyncio.Semaphore(_AT_ONCE), self._max_pixels)
        tasks: dict[ImageReference, asyncio.Task[ImageInput]] = {}
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for number, place in enumerate(places, start=1):
                    if place.reference not in tasks:
                        work = self._load_one(request, place, number)
                        tasks[place.reference] = group.create_task(work)
        except* ImageError as failures:
            failure = failures.exceptions[0]
        if failure is not None:  # raised in the `except*` above it would come out inside a group
            raise failure
        return tuple(tasks[place.reference].result() for place in places)

    async def _load_one(self, request: _Request, place: PlacedImage, number: int) -> ImageInput:
        try:
            async with request.slots:
                image = await self._read(place.reference, request.tenant)
                request.count(image)
                return image
        except ImageError as error:
            self._observer.image_failed(error.code)
            raise error.at(number, place.param) from None

    async def _read(self, reference: ImageReference, tenant: str) -> ImageInput:
        text = reference.text.strip()
        head = text[:8].lower()
        if reference.inline:
            return await self._decode(text, lambda: decode_base64(text.encode(), self._max_bytes), tenant)
        if head.startswith("data:"):
            return await self._decode(text, lambda: decode_data_url(text, self._max_bytes), tenant)
        if head.startswith(("http://", "https://")):
            return await self._fetch(text, tenant)
        raise ImageError("invalid_image_url", "it is neither an http(s) URL nor a data URL.")

    async def _fetch(self, url: str, tenant: str) -> ImageInput:
        known = self._urls.get(tenant, url)
        started = time.monotonic()
        fetched = await self._fetcher.fetch(url, known.validators if known else Validators())
        self._observer.image_fetched(time.monotonic() - started)
        data = fetched.data
        if data is None:
            assert known is not None  # the fetcher says so only of what it was told is known
            self._observer.image_not_modified()
            return known.image
        image = await self._decode(data, lambda: data, tenant)
        self._urls.put(tenant, url, KnownImage(fetched.validators, image))
        return image

    async def _decode(self, sent: str | bytes, content: Callable[[], bytes], tenant: str) -> ImageInput:
        """The picture whose file is `content()`, which takes its time where `sent` is a text."""
        if len(sent) <= _HASHED_AT_ONCE and (found := self._uploads.find(tenant, sent)) is not None:
            return found
        started = time.monotonic()
        image, known = await self._decoder.run(
            lambda: self._uploads.find_or_decode(tenant, sent, lambda: self._decoder.decode(content()))
        )
        if not known:
            self._observer.image_decoded(time.monotonic() - started)
        return image


class _Request:
    """What the images of one request have in common."""

    def __init__(self, tenant: str, slots: asyncio.Semaphore, pixels: int) -> None:
        self.tenant = tenant
        self.slots = slots
        self._limit = pixels
        self._left = pixels

    def count(self, image: ImageInput) -> None:
        """Raises `ImageError` when the request's pictures add up to too much."""
        self._left -= image.width * image.height
        if self._left < 0:
            message = f"with it the request has more than {self._limit} pixels in all."
            raise ImageError("image_too_large", message)
