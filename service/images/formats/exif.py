"""The one thing that EXIF is read for: which way up a picture is."""

from __future__ import annotations

import struct
from typing import Final

_ORIENTATION: Final = 0x0112
_MOST_ENTRIES: Final = 1000
_PREFIX: Final = b"Exif\0\0"
# Of the types in which a whole number of one value may be written: BYTE, SHORT, LONG.
_NUMBER: Final = {1: "B", 3: "H", 4: "I"}


def orientation_of(exif: bytes) -> int:
    """The orientation (1 to 8) that a block of EXIF tells. 1, as it stands, where it tells nothing that makes sense:
    broken notes beside a picture do not make it another one."""
    block = exif.removeprefix(_PREFIX)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None:
        return 1
    try:
        return _search(block, order)
    except struct.error:
        return 1


def _search(block: bytes, order: str) -> int:
    (place,) = struct.unpack_from(order + "I", block, 4)
    (entries,) = struct.unpack_from(order + "H", block, place)
    for entry in range(min(entries, _MOST_ENTRIES)):
        tag, kind, _ = struct.unpack_from(order + "HHI", block, place + 2 + 12 * entry)
        if tag == _ORIENTATION and kind in _NUMBER:
            (value,) = struct.unpack_from(order + _NUMBER[kind], block, place + 10 + 12 * entry)
            return int(value) if 1 <= value <= 8 else 1
    return 1
