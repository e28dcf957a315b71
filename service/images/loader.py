"""The images of one request: each reference fetched and decoded once, in the order they were given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from engine.messages import ImageInput
from service.errors import ImageError
from service.files.library import FileLibrary
from service.images.data_url import decode_base64, decode_data_url
from service.images.decode import too_many_in_all
from service.images.decoder import Decoder
from service.images.decoder_process import DecodedPage
from service.images.fetch import Fetcher, Validators
from service.images.known_images import KnownImage, SentKey, UploadIndex, UrlIndex, digest_of
from service.images.local import SCHEME, LocalFolders
from service.images.low_detail import at_low_detail
from service.images.picture_memory import PictureMemory
from service.images.reference import FilePage, ImageReference, PlacedImage
from service.images.url import check_length
from store.records.keys import owner

_AT_ONCE: Final = 4
"""Images of one request in work at the same time: more would let one request hold many decoded pictures at
once."""
_HASHED_AT_ONCE: Final = 256 * 1024
"""Of what is no longer, the digest takes less than handing it to a thread would."""


_TaskKey = tuple[str | SentKey, bool]
"""An image of a request, and whether it is taken small."""


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
class Sources:
    """Where files come from, and pixels."""

    fetcher: Fetcher
    decoder: Decoder
    files: FileLibrary
    local: LocalFolders


@dataclass(frozen=True, slots=True)
class Known:
    """What may spare work: pictures by URL, and by the file that they were decoded from."""

    urls: UrlIndex
    uploads: UploadIndex


class ImageLoader:
    """What loads the images of all requests; `limits` are those of one request."""

    def __init__(
        self,
        sources: Sources,
        known: Known,
        memory: PictureMemory,
        observer: ImageObserver,
        limits: LoadLimits,
    ) -> None:
        self._fetcher, self._decoder = sources.fetcher, sources.decoder
        self._files, self._local = sources.files, sources.local
        self._memory = memory
        self._urls, self._uploads = known.urls, known.uploads
        self._observer = observer
        self._max_bytes = limits.image_bytes
        self._max_pixels = limits.request_pixels

    @asynccontextmanager
    async def loaded(
        self, places: Sequence[PlacedImage], tenant: str
    ) -> AsyncGenerator[tuple[ImageInput, ...], None]:
        """One input a place; places with the same reference share it. The first failure is raised, as an
        `ImageError` that names its place, and ends the work on the others. What the pixels take counts for the tenant
        until the end of the context; `UnavailableError` where there is no room for them."""
        request = _Request(tenant, self._max_pixels, self._memory)
        try:
            yield await self._load(request, places)
        finally:
            await request.close()

    async def _load(self, request: _Request, places: Sequence[PlacedImage]) -> tuple[ImageInput, ...]:
        keys = [await self._begin(request, place, number) for number, place in enumerate(places, start=1)]
        await asyncio.gather(*request.tasks.values())
        return tuple(request.tasks[key].result() for key in keys)

    async def _begin(self, request: _Request, place: PlacedImage, number: int) -> _TaskKey:
        """Begin to load it unless that has begun; what it is known by."""
        source = await self._source(request, place, number)
        key = (source.key, place.low)
        if key not in request.tasks:
            work = self._load_one(request, source, place, number)
            request.tasks[key] = asyncio.create_task(work)
        return key

    async def _source(self, request: _Request, place: PlacedImage, number: int) -> _Source:
        try:
            if isinstance(place.reference, FilePage):
                return self._uploaded(place.reference, request.account)
            return await self._read(place.reference, request.account)
        except ImageError as error:
            self._observer.image_failed(error.code)
            raise error.at(number, place.param) from None

    def _uploaded(self, page: FilePage, account: str) -> _Source:
        """Its digest is known since it was uploaded: what is known of the picture needs no disk."""
        record = self._files.find(account, page.file)
        key = SentKey("upload", bytes.fromhex(record.sha256), page.page)
        return _Source(key, lambda: self._files.content(record))

    async def _read(self, reference: ImageReference, account: str) -> _Source:
        """What `reference` is."""
        text = reference.text.strip()
        head = text[:8].lower()
        if reference.inline:
            key = SentKey("base64", await self._digest(text, account))
            return _Source(key, lambda: decode_base64(text, self._max_bytes))
        if head.startswith("data:"):
            key = SentKey("data URL", await self._digest(text, account))
            return _Source(key, lambda: decode_data_url(text, self._max_bytes))
        if head.startswith(("http://", "https://")):
            check_length(text)
            return _Source(text)
        if self._local and head.startswith(SCHEME):
            return _Source(text)
        raise ImageError("invalid_image_url", "it is neither an http(s) URL nor a data URL.")

    async def _load_one(
        self, request: _Request, source: _Source, place: PlacedImage, number: int
    ) -> ImageInput:
        try:
            async with request.slots:
                if isinstance(source.key, SentKey):
                    image = await self._decode(request, source.key, source.content)
                elif source.key[: len(SCHEME)].lower() == SCHEME:
                    image = await self._open(request, source.key)
                else:
                    image = await self._fetch(request, source.key)
                request.count(image)
                if place.low:
                    image = request.exchange(image, await self._shrunk(request, image))
                return image
        except ImageError as error:
            self._observer.image_failed(error.code)
            raise error.at(number, place.param) from None

    async def _shrunk(self, request: _Request, image: ImageInput) -> ImageInput:
        return await self._decoder.run(request.account, lambda: at_low_detail(image))

    async def _fetch(self, request: _Request, url: str) -> ImageInput:
        known = self._urls.get(request.tenant, url)
        started = time.monotonic()
        fetched = await self._fetcher.fetch(url, request.account, known.validators if known else Validators())
        self._observer.image_fetched(time.monotonic() - started)
        data = fetched.data
        if data is None:
            assert known is not None  # the fetcher says so only of what it was told is known
            self._observer.image_not_modified()
            return known.image
        key = SentKey("file", await self._digest(data, request.account))
        image = await self._decode(request, key, lambda: data)
        self._urls.put(request.tenant, url, KnownImage(fetched.validators, image))
        return image

    async def _open(self, request: _Request, url: str) -> ImageInput:
        data = await self._decoder.run(request.account, lambda: self._local.read(url))
        key = SentKey("file", await self._digest(data, request.account))
        return await self._decode(request, key, lambda: data)

    async def first_page(self, tenant: str, digest: bytes, content: Callable[[], bytes]) -> DecodedPage:
        """The first page of an upload, decoded now and remembered for requests that name it. Raises `ImageError`."""
        key = SentKey("upload", digest, 1)
        page = await self._decoder.run(
            owner(tenant), lambda: self._decoder.decode_page(content(), self._max_pixels, 1)
        )
        self._uploads.put(tenant, key, page.image)
        return page

    async def _digest(self, sent: str | bytes, account: str) -> bytes:
        if len(sent) <= _HASHED_AT_ONCE:
            return digest_of(sent)
        return await self._decoder.run(account, lambda: digest_of(sent))

    async def _decode(self, request: _Request, key: SentKey, content: Callable[[], bytes]) -> ImageInput:
        """The picture whose file is `content()`, which takes its time where a text was sent."""
        tenant, left = request.tenant, request.pixels_left
        if (found := self._uploads.find(tenant, key)) is not None:
            return found
        started = time.monotonic()
        image, known = await self._decoder.run(
            request.account,
            lambda: self._uploads.find_or_decode(tenant, key, lambda: self._unpacked(key, content(), left)),
        )
        if not known:
            self._observer.image_decoded(time.monotonic() - started)
        return image

    def _unpacked(self, key: SentKey, data: bytes, left: int) -> ImageInput:
        if key.page:
            return self._decoder.decode_page(data, left, key.page).image
        return self._decoder.decode(data, left)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where an image comes from. `key` is the same for the same image: a URL, or what was sent; `content` then reads
    the file out of it."""

    key: str | SentKey
    content: Callable[[], bytes] = bytes


class _Request:
    """What the images of one request have in common. Callers take turns by account, whatever their salts."""

    def __init__(self, tenant: str, pixels: int, memory: PictureMemory) -> None:
        self.tenant = tenant
        self.account = owner(tenant)
        self.slots = asyncio.Semaphore(_AT_ONCE)
        self.tasks: dict[_TaskKey, asyncio.Task[ImageInput]] = {}
        self.pixels_left = pixels
        self._limit = pixels
        self._memory = memory
        self._held: list[ImageInput] = []

    def count(self, image: ImageInput) -> None:
        """Raises `ImageError` when the request's pictures add up to too much, `UnavailableError` when those of all
        requests do."""
        self.pixels_left -= image.width * image.height
        if self.pixels_left < 0:
            raise too_many_in_all(self._limit)
        self._memory.take(self.account, image)
        self._held.append(image)

    def exchange(self, image: ImageInput, smaller: ImageInput) -> ImageInput:
        """`smaller`, which is counted in the place of `image`."""
        self._memory.take(self.account, smaller)
        # The same picture may be held for another place as well, and equal ones are not the same.
        place = next(i for i, held in enumerate(self._held) if held is image)
        self._held[place] = smaller
        self._memory.give_back(self.account, image)
        return smaller

    async def close(self) -> None:
        """End what still goes on, and forget everything: an error knows the frames that it went through, which must
        not know it and the other pictures in turn. Such a circle would keep them until the collector comes by."""
        going_on = [task for task in self.tasks.values() if not task.done()]
        self.tasks.clear()
        for task in going_on:
            task.cancel()
        if going_on:
            await asyncio.wait(going_on)
        for image in self._held:
            self._memory.give_back(self.account, image)
        self._held.clear()
