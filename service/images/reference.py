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
class FileReference:
    """An uploaded file as the caller wrote it, which stands for one image or several: `pages` such as `1-3`, None for
    all of them."""

    id: str
    pages: str | None = None


@dataclass(frozen=True, slots=True)
class FilePage:
    """One page of an uploaded file, counted from 1. A picture is one page."""

    file: str
    page: int


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """A reference and the request field it stands in. `low`: a small picture of it will do."""

    reference: ImageReference | FilePage
    param: str
    low: bool = False
