"""Pixels cross the pipe once: a worker keeps what it was sent for a while, and is sent no more than the digest when the
same picture is asked about again. The sender alone decides what is kept; the worker does as it is told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from engine.messages import GenerateRequest, ImageInput

# Of one tenant only: how fast a picture is answered must not tell that somebody else has asked about it.
PictureKey = tuple[str, bytes]


class SentPictures:
    """The sender's account of what its worker keeps, least recently used first; `max_bytes` of pixels at most."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sizes: OrderedDict[PictureKey, int] = OrderedDict()

    def packed(self, request: GenerateRequest) -> GenerateRequest:
        """`request` as it is to be sent: without the pixels that the worker keeps."""
        images = [self._bare(image, (request.tenant, image.digest)) for image in request.images]
        return replace(request, images=tuple(images))

    def sent(self, request: GenerateRequest) -> tuple[PictureKey, ...]:
        """Note that `request` has been sent; what the worker must forget for it."""
        for image in request.images:
            key = (request.tenant, image.digest)
            self._bytes += len(image.pixels) - self._sizes.pop(key, 0)
            self._sizes[key] = len(image.pixels)
        surplus = []
        while self._bytes > self._max_bytes:
            key, size = self._sizes.popitem(last=False)
            self._bytes -= size
            surplus.append(key)
        return tuple(surplus)

    def _bare(self, image: ImageInput, key: PictureKey) -> ImageInput:
        return replace(image, pixels=b"") if key in self._sizes else image


class KeptPictures:
    """The worker's end."""

    def __init__(self) -> None:
        self._images: dict[PictureKey, ImageInput] = {}

    def unpacked(self, request: GenerateRequest) -> GenerateRequest:
        """`request` with the pixels of all its images."""
        images = [self._whole(image, (request.tenant, image.digest)) for image in request.images]
        return replace(request, images=tuple(images))

    def forget(self, keys: Sequence[PictureKey]) -> None:
        for key in keys:
            del self._images[key]

    def _whole(self, image: ImageInput, key: PictureKey) -> ImageInput:
        if image.pixels:
            self._images[key] = image
        return self._images[key]
