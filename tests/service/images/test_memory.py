"""Pixels, files and texts leave memory when they have been used: nothing waits for the cyclic collector."""

from __future__ import annotations

import asyncio
import gc
import ssl
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from PIL import Image

from service.errors import ImageError
from service.http.admission import Shared
from service.images.addresses import HostPolicy, SystemResolver
from service.images.decode import PixelLimits, decode_image
from service.images.decoder import Decoder
from service.images.fetch import Fetcher
from service.images.known_images import UploadIndex, UrlIndex
from service.images.loader import ImageLoader, Known, LoadLimits, Sources
from service.images.local import LocalFolders
from service.images.picture_memory import PictureMemory
from service.images.reference import ImageReference, PlacedImage
from tests.service.files.keeping import no_files
from tests.service.images.pictures import data_url, encode
from tests.service.images.test_decoder import PIXELS, RULES
from tests.service.images.watching import Watching
from tests.service.serving import Host, http

EDGE = 400
PICTURE = 3 * EDGE * EDGE
"""Bytes of pixels; as a BMP, the file and its text are as large."""


@contextmanager
def nothing_kept(limit: int = PICTURE // 4) -> Iterator[None]:
    """With the collector off, what is traced at the end is what was at the start."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
        kept = tracemalloc.get_traced_memory()[0]
        largest = tracemalloc.take_snapshot().statistics("lineno")[:3]
        assert kept < limit, largest
    finally:
        tracemalloc.stop()
        gc.enable()


def bmp(red: int) -> bytes:
    return encode(Image.new("RGB", (EDGE, EDGE), (red, 0, 0)), "BMP")


Ask = Callable[..., Awaitable[None]]


async def refused(asked: Awaitable[None], text: str) -> None:
    """(`pytest.raises` would keep the error, and with it every frame that it went through.)"""
    try:
        await asked
    except ImageError as error:
        assert text in error.message
    else:
        raise AssertionError("it was taken")


def loading(work: Callable[[Ask], Awaitable[None]]) -> None:
    """`work` with a loader that remembers nothing; it is warm when the watch begins."""

    async def run() -> None:
        policy = HostPolicy((), ("127.0.0.1",), SystemResolver())
        fetcher = Fetcher(policy, 1_000_000, 20.0, ssl.create_default_context(), Shared(4, several=True))
        decoder = Decoder(RULES, Shared(4, several=True))
        known = Known(UrlIndex(0), UploadIndex(0))
        memory = PictureMemory(Shared(10_000_000, several=True))
        limits = LoadLimits(1_000_000, PIXELS)
        sources = Sources(fetcher, decoder, no_files(), LocalFolders((), 0))
        loader = ImageLoader(sources, known, memory, Watching(), limits)

        async def ask(*texts: str) -> None:
            async with loader.loaded([PlacedImage(ImageReference(text), "x") for text in texts], "a"):
                pass

        await work(ask)
        with nothing_kept():
            for _ in range(3):
                await work(ask)
            await asyncio.sleep(0.01)
        decoder.close()

    asyncio.run(run())


def test_pixels_leave_memory_with_their_request() -> None:
    async def work(ask: Ask) -> None:
        await ask(*(data_url(bmp(red)) for red in range(3)))

    loading(work)


def test_pixels_leave_memory_where_another_picture_of_the_request_fails() -> None:
    async def work(ask: Ask) -> None:
        broken = data_url(bmp(9)[:-1000])
        await refused(ask(data_url(bmp(1)), data_url(bmp(2)), broken), "Image 3: ")

    loading(work)


def test_pixels_leave_memory_where_there_are_too_many() -> None:
    async def work(ask: Ask) -> None:
        await refused(ask(*(data_url(bmp(red)) for red in range(7))), "more than 1000000 pixels in all")

    loading(work)


def test_pixels_leave_memory_where_the_client_does() -> None:
    async def work(ask: Ask) -> None:
        task = asyncio.ensure_future(ask(*(data_url(bmp(red)) for red in range(4))))
        await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        await ask(data_url(bmp(5)))  # behind what still goes on
        await asyncio.sleep(0.05)

    loading(work)


@pytest.mark.parametrize("broken", [False, True], ids=["picture", "damaged"])
def test_pixels_leave_memory_that_were_fetched(host: Host, broken: bool) -> None:
    url = host.serves("/a.bmp", http(bmp(1)[:-1000] if broken else bmp(1)))

    async def work(ask: Ask) -> None:
        await (refused(ask(url), "damaged") if broken else ask(url))

    loading(work)


def test_pixels_leave_memory_of_a_body_that_is_too_large(host: Host) -> None:
    url = host.serves("/a.bmp", http(bytes(1_000_001), length=False))

    async def work(ask: Ask) -> None:
        await refused(ask(url), "larger")

    loading(work)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("fails", [False, True], ids=["picture", "damaged"])
def test_pixels_leave_the_decoding_process_with_their_picture(kind: str, fails: bool) -> None:
    """Its own allocations are those of the codecs, which are not traced: the file stands for them."""
    data = encode(Image.effect_noise((EDGE, EDGE), 60).convert("RGB"), kind)
    formats = (kind.lower(),)
    limits = PixelLimits(PIXELS, PIXELS, PIXELS)

    def work() -> None:
        try:
            decode_image(data[: len(data) // 2] if fails else bytes(bytearray(data)), formats, limits)
        except ImageError as error:
            assert fails and error.code == "invalid_image"

    work()
    with nothing_kept(len(data) // 4):
        for _ in range(3):
            work()
