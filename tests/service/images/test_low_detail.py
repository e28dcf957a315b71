"""`detail: "low"`: a small picture of its own, counted as what it is."""

from __future__ import annotations

import asyncio
import ssl

import httpx
import pytest
from PIL import Image

from engine.messages import ImageInput
from service.http.admission import Shared
from service.images.addresses import HostPolicy, SystemResolver
from service.images.decoder import Decoder
from service.images.fetch import Fetcher
from service.images.known_images import UploadIndex, UrlIndex
from service.images.loader import ImageLoader, Known, LoadLimits, Sources
from service.images.local import LocalFolders
from service.images.low_detail import LOW_EDGE, at_low_detail
from service.images.picture_memory import PictureMemory
from service.images.reference import ImageReference, PlacedImage
from store.records.keys import pixel_digest
from tests.service.fake_engine import FakeEngine
from tests.service.files.keeping import no_files
from tests.service.images.pictures import data_url, encode
from tests.service.images.test_decoder import RULES
from tests.service.images.watching import Watching


def decoded(picture: Image.Image) -> ImageInput:
    pixels = picture.tobytes()
    return ImageInput(pixel_digest(*picture.size, pixels), *picture.size, pixels)


@pytest.mark.parametrize(
    ("size", "small"),
    [((1024, 768), (512, 384)), ((100, 2000), (26, 512)), ((4000, 1), (512, 1)), ((513, 513), (512, 512))],
)
def test_the_longer_edge_has_512_pixels_and_the_shape_stays(
    size: tuple[int, int], small: tuple[int, int]
) -> None:
    image = at_low_detail(decoded(Image.new("RGB", size, (10, 200, 30))))
    assert (image.width, image.height) == small
    assert set(zip(*[iter(image.pixels)] * 3, strict=True)) == {(10, 200, 30)}
    assert image.digest == pixel_digest(*small, image.pixels)


def test_a_picture_is_averaged_not_thinned_out() -> None:
    stripes = Image.new("RGB", (1024, 64))
    for x in range(0, 1024, 2):
        stripes.paste((255, 255, 255), (x, 0, x + 1, 64))
    image = at_low_detail(decoded(stripes))
    assert all(100 < level < 155 for level in image.pixels)


@pytest.mark.parametrize("size", [(LOW_EDGE, LOW_EDGE), (1, 1), (512, 3)])
def test_a_small_picture_stays_as_it_is(size: tuple[int, int]) -> None:
    image = decoded(Image.new("RGB", size, (1, 2, 3)))
    assert at_low_detail(image) is image


def content(url: str, *details: str | None) -> list[dict[str, object]]:
    return [
        {"type": "image_url", "image_url": {"url": url, **({} if detail is None else {"detail": detail})}}
        for detail in details
    ]


def test_both_details_of_one_picture_are_two_images(api: httpx.Client, engine: FakeEngine) -> None:
    url = data_url(encode(Image.new("RGB", (1000, 500), (9, 9, 9))))
    parts = [*content(url, "low", None, "high", "low"), {"type": "text", "text": "?"}]
    api.post("/v1/chat", json={"messages": [{"role": "user", "content": parts}]}).raise_for_status()
    images = engine.requests[0].images
    assert [(image.width, image.height) for image in images] == [
        (512, 256),
        (1000, 500),
        (1000, 500),
        (512, 256),
    ]
    assert images[0].digest == images[3].digest != images[1].digest == images[2].digest


def test_memory_counts_the_small_one_and_all_is_given_back() -> None:
    shared = Shared(40_000_000, several=True)
    url = ImageReference(data_url(encode(Image.new("RGB", (900, 900)))))
    places = [PlacedImage(url, "x", low) for low in (True, True, False)]

    async def run() -> None:
        decoder = Decoder(RULES, Shared(2, several=True))
        fetcher = Fetcher(HostPolicy((), (), SystemResolver()), 1, 1.0, ssl.create_default_context(), shared)
        sources = Sources(fetcher, decoder, no_files(), LocalFolders((), 0))
        known, limits = Known(UrlIndex(0), UploadIndex(0)), LoadLimits(10_000_000, 3_000_000)
        loader = ImageLoader(sources, known, PictureMemory(shared), Watching(), limits)
        async with loader.loaded(places, "a"):
            assert shared.total == 3 * (512 * 512 + 900 * 900)
        decoder.close()

    asyncio.run(run())
    assert shared.total == 0
