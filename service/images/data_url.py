"""Data URLs and plain base64 -> bytes. As tolerant as the clients in the field are different, and no more."""

from __future__ import annotations

import binascii
from typing import Final
from urllib.parse import unquote_to_bytes

from service.errors import ImageError

_SPACE: Final = b" \t\r\n\f\v"
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_PIECE: Final = 4 * 16 * 1024
"""Read at a time: the interpreter's lock is held for a piece, and a large picture at once would hold up every
other request."""


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """The content of `url`, which starts with `data:`. Parameters and the declared type do not matter,
    `base64` may be in any case, the payload may be percent-encoded. Raises `ImageError`."""
    header, comma, payload = url.partition(",")
    if not comma:
        raise ImageError("invalid_image_url", "this data URL has no comma before its data.")
    # Percent-encoding makes three characters of one at most, base64 four of three.
    if len(payload) > 4 * max_bytes + 4096:
        raise _too_large(max_bytes)
    data = unquote_to_bytes(payload) if "%" in payload else payload.encode()
    if "base64" in [parameter.strip().lower() for parameter in header.split(";")[1:]]:
        return decode_base64(data, max_bytes)
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def decode_base64(data: bytes, max_bytes: int) -> bytes:
    """Base64 of either alphabet, padded or not, with or without line breaks. Raises `ImageError`."""
    digits = data.translate(_URL_SAFE, _SPACE).rstrip(b"=")
    if len(digits) * 3 // 4 > max_bytes:
        raise _too_large(max_bytes)
    if b"=" in digits:  # it would be taken for the end of a piece
        raise _malformed()
    digits += b"=" * (-len(digits) % 4)
    pieces = (digits[start : start + _PIECE] for start in range(0, len(digits), _PIECE))
    try:
        return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)
    except binascii.Error:
        raise _malformed() from None


def _malformed() -> ImageError:
    return ImageError("invalid_image_url", "its base64 is malformed.")


def _too_large(max_bytes: int) -> ImageError:
    return ImageError("image_too_large", f"it is larger than {max_bytes} bytes.")
