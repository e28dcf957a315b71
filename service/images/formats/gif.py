"""GIF: the first frame, on a canvas of the background. Blocks are walked up to it, and no further."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from PIL import Image

from service.errors import ImageError
from service.images.formats.picture import BACKGROUND, Picture, damaged, on_canvas, to_rgb, too_many, unpacked

# Sub-blocks of at most 255 bytes in front of the first frame: notes and profiles.
MOST_BLOCKS: Final = 100_000

_INTRODUCER: Final = re.compile(rb"[!,;]")
_SCREEN: Final = struct.Struct("<6sHHBBB")
_FRAME: Final = struct.Struct("<HHHHB")
_CONTROL: Final = 0xF9
_HAS_COLOURS, _INTERLACED = 0x80, 0x40
_GREYS: Final = bytes(value for value in range(256) for _ in range(3))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the descriptor of the first frame stands, and which colour shows through (-1 for none)."""

    place: int
    transparent: int


def read_gif(data: bytes) -> Picture:
    """Raises `ImageError`."""
    if len(data) < _SCREEN.size:
        raise damaged("gif")
    _, screen_width, screen_height, flags, _, _ = _SCREEN.unpack_from(data)
    colours, place = _colour_table(data, _SCREEN.size, flags)
    frame = _find_frame(data, place)
    if frame.place + _FRAME.size > len(data):
        raise damaged("gif")
    left, top, width, height, flags = _FRAME.unpack_from(data, frame.place)
    own, place = _colour_table(data, frame.place + _FRAME.size, flags)
    if width < 1 or height < 1:
        raise ImageError("invalid_image", "it has no pixels.")
    # A screen that is too small for its frame is a slip of whoever wrote it.
    canvas = max(screen_width, left + width), max(screen_height, top + height)
    file = _alone((width, height), flags, _shown(own or colours or _GREYS, frame.transparent), data[place:])

    def unpack() -> Image.Image:
        return on_canvas(to_rgb(unpacked(file, "gif", (width, height))), canvas, (left, top))

    return Picture(*canvas, unpack)


def _colour_table(data: bytes, place: int, flags: int) -> tuple[bytes, int]:
    """The table that `flags` announce at `place` (b"" for none), and what comes behind."""
    end = place + (3 << (flags & 7) + 1 if flags & _HAS_COLOURS else 0)
    return data[place:end], end


def _find_frame(data: bytes, place: int) -> _Frame:
    blocks, transparent = 0, -1
    while (found := _INTRODUCER.search(data, place)) and found[0] != b";":
        place = found.end()
        if found[0] == b",":
            return _Frame(place, transparent)
        if data[place : place + 1] == bytes((_CONTROL,)) and place + 6 <= len(data):
            transparent = data[place + 5] if data[place + 2] & 1 else -1
        place += 1
        while place < len(data) and data[place]:
            place += 1 + data[place]
            blocks += 1
            if blocks > MOST_BLOCKS:
                raise too_many("GIF blocks", MOST_BLOCKS)
        place += 1
    raise damaged("gif")


def _shown(colours: bytes, transparent: int) -> bytes:
    """256 colours, with the background for the transparent one and black for those that the file does not have."""
    table = bytearray(colours.ljust(768, b"\0"))
    if transparent >= 0:
        table[3 * transparent : 3 * transparent + 3] = bytes(BACKGROUND)
    return bytes(table)


def _alone(size: tuple[int, int], flags: int, colours: bytes, body: bytes) -> bytes:
    """A GIF of one frame that fills its screen. `body` begins with the code size of its data."""
    screen = _SCREEN.pack(b"GIF89a", *size, _HAS_COLOURS | 7, 0, 0)
    return screen + colours + b"," + _FRAME.pack(0, 0, *size, flags & _INTERLACED) + body
