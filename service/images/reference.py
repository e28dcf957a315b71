"""An image as a request names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image as the caller wrote it: a URL or data URL, or (`inline`) base64 alone. Never opened as a
    path."""

    text: str
    inline: bool = False


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """A reference and the request field it stands in."""

    reference: ImageReference
    param: str
