"""PNG of 16 bits a sample, which the codec knows no picture for: it is had to give every byte, and the samples are put
together, compared, laid on the background and scaled here."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from service.images.formats.picture import BACKGROUND, damaged, unpacked
from service.images.formats.png_chunks import GREY, GREY_ALPHA, RGB, RGBA, Raster

Samples = npt.NDArray[np.uint16]
_STRIP_PIXELS: Final = 1 << 18
_MOST: Final = 65535
_SCALE: Final = _MOST // 255
# A pixel of these takes as many bytes as one of another kind at 8 bits, which can be had whole.
_AS_BYTES: Final = {GREY: GREY_ALPHA, GREY_ALPHA: RGBA}


def unpack(raster: Raster, key: tuple[int, ...] | None) -> Image.Image:
    """RGB on the background; pixels whose samples are `key` are transparent."""
    page = Image.new("RGB", raster.size)
    for top, samples in _strips(raster):
        page.paste(Image.fromarray(_to_rgb(samples, key)), (0, top))
    return page


def _strips(raster: Raster) -> Iterator[tuple[int, Samples]]:
    """Rows from the top down, as [rows, width, samples], and which row each strip begins with."""
    width, height = raster.size
    layers = _layers(raster)
    step = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, step):
        area = (0, top, width, min(top + step, height))
        parts = [np.asarray(layer.crop(area)) for layer in layers]
        high, low = (parts[0], parts[1]) if len(parts) == 2 else (parts[0][..., ::2], parts[0][..., 1::2])
        yield top, high.astype(np.uint16) << 8 | low


def _layers(raster: Raster) -> tuple[Image.Image, ...]:
    """Either one picture of high and low bytes in turn, or one of the high and one of the low ones."""
    if raster.colour in _AS_BYTES:
        file = replace(raster, depth=8, colour=_AS_BYTES[raster.colour]).file()
        return (unpacked(file, "png", raster.size),)
    file = raster.file()
    mode = {RGB: "RGB", RGBA: "RGBA"}[raster.colour]
    return tuple(_bytes_of(file, f"{mode};16{end}", raster.size) for end in ("B", "L"))


def _bytes_of(file: bytes, order: str, size: tuple[int, int]) -> Image.Image:
    """The first bytes of all samples (`order` ends with B) or their second ones (L): the codec keeps the high byte of a
    sample, and can be told on which end that is."""
    with Image.open(io.BytesIO(file), formats=["png"]) as image:
        if image.size != size:
            raise damaged("png")
        assert isinstance(image, ImageFile.ImageFile)
        image.tile = [image.tile[0]._replace(args=order)]
        image.load()
    return image


def _to_rgb(samples: Samples, key: tuple[int, ...] | None) -> npt.NDArray[np.uint8]:
    """8 bits of [rows, width, samples], where an even number of samples has alpha as its last."""
    has_alpha = samples.shape[-1] % 2 == 0
    colour = samples[..., :-1] if has_alpha else samples
    shown = _over_background(colour, samples[..., -1:]) if has_alpha else _scaled(colour)
    rgb = np.broadcast_to(shown, (*shown.shape[:-1], 3)).astype(np.uint8)
    if key is not None:
        rgb[(colour == np.array(key, np.uint16)).all(axis=-1)] = BACKGROUND
    return rgb


def _scaled(colour: Samples) -> npt.NDArray[np.unsignedinteger[Any]]:
    return (colour.astype(np.uint32) + _SCALE // 2) // _SCALE


def _over_background(colour: Samples, alpha: Samples) -> npt.NDArray[np.unsignedinteger[Any]]:
    wide = alpha.astype(np.uint64)
    below = np.array(BACKGROUND, np.uint64) * _SCALE
    mixed = colour * wide + below * (_MOST - wide)
    return (mixed + _MOST * _SCALE // 2) // (_MOST * _SCALE)
