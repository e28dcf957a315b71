"""JPEG: segments walked from marker to marker, scans counted on the way."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from PIL import Image

from service.errors import ImageError
from service.images.formats.exif import orientation_of
from service.images.formats.picture import Picture, damaged, to_rgb, too_many, unpacked

# A large profile, a depth map or an extended note takes some hundred segments of 64 KiB; more than this number is made
# of tiny ones.
MOST_SEGMENTS: Final = 1000
# Every scan goes over all pixels and may be a few bytes long: a file within all other limits could keep a process busy
# for hours. Encoders write about ten.
MOST_SCANS: Final = 100
_USUAL_SCANS: Final = 20
_MOST_PIXEL_SCANS: Final = 400_000_000
"""Pixels times scans, where there are more scans than usual."""

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_TABLES: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF})
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
_JFIF, _APP1, _ADOBE = 0xE0, 0xE1, 0xEE
_MARKER: Final = re.compile(rb"\xff[^\x00\xff]")
# In the data of a scan 0xFF is followed by 0, or makes a restart marker.
_SCAN_END: Final = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


@dataclass(slots=True)
class _Parts:
    """What was found so far. `kept` are the parts that make pixels, in their order."""

    kept: list[bytes] = field(default_factory=list)
    size: tuple[int, int] | None = None
    scans: int = 0
    orientation: int | None = None


def read_jpeg(data: bytes) -> Picture:
    """Raises `ImageError`."""
    parts = _parts(data)
    if parts.size is None or not parts.scans:
        raise damaged("jpeg")
    width, height = size = parts.size
    if parts.scans > _USUAL_SCANS and parts.scans * width * height > _MOST_PIXEL_SCANS:
        raise ImageError("invalid_image", f"it is a JPEG of {parts.scans} scans, too many for its size.")
    file = b"".join(parts.kept)

    def unpack() -> Image.Image:
        return to_rgb(unpacked(file, "jpeg", size))

    return Picture(width, height, unpack, parts.orientation or 1)


def _parts(data: bytes) -> _Parts:
    """The parts of `data` up to the end of its image: what follows (a video, another picture) is not of it."""
    parts, place = _Parts([b"\xff\xd8"]), 2
    for _ in range(MOST_SEGMENTS + 1):
        marker = _MARKER.search(data, place)
        if marker is None:
            return parts  # incomplete; the codec decides what that means
        kind, place = data[marker.end() - 1], marker.end()
        if kind == _EOI:
            parts.kept.append(b"\xff\xd9")
            return parts
        if kind == _SOI:
            raise damaged("jpeg")
        if kind not in _ALONE:
            place = _segment(parts, data, kind, place)
    raise too_many("JPEG segments", MOST_SEGMENTS)


def _segment(parts: _Parts, data: bytes, kind: int, place: int) -> int:
    """Note the segment whose length stands at `place`; where the next one may begin."""
    end = place + int.from_bytes(data[place : place + 2])
    if end < place + 2:
        raise damaged("jpeg")
    if kind == _SOS:
        end = _scan_end(data, end)
        parts.scans += 1
        if parts.scans > MOST_SCANS:
            raise too_many("JPEG scans", MOST_SCANS)
    if kind in _FRAMES:
        parts.size = int.from_bytes(data[place + 5 : place + 7]), int.from_bytes(data[place + 3 : place + 5])
    if kind == _APP1 and parts.orientation is None and data.startswith(b"Exif\0\0", place + 2):
        parts.orientation = orientation_of(data[place + 2 : end])
    if _makes_pixels(kind, data[place + 2 : min(end, place + 16)]):
        parts.kept += (bytes((0xFF, kind)), data[place:end])
    return end


def _scan_end(data: bytes, place: int) -> int:
    """Where the data of a scan ends that begins at `place`."""
    marker = _SCAN_END.search(data, place)
    return len(data) if marker is None else marker.start()


def _makes_pixels(kind: int, head: bytes) -> bool:
    """Of the application segments only two say how numbers become colours, where they are as long as they must be."""
    if kind == _JFIF:
        return head.startswith(b"JFIF\0") and len(head) >= 14
    if kind == _ADOBE:
        return head.startswith(b"Adobe") and len(head) >= 12
    return kind == _SOS or kind in _FRAMES or kind in _TABLES
