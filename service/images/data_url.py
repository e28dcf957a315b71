"""Data URLs and plain base64 -> bytes. As tolerant as the clients in the field are different, and no more.

Everything is read in pieces: the interpreter's lock is held for a piece, and a large picture at once would hold up
every other request. What it takes besides the result is the size of a piece.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from typing import Final

from service.errors import ImageError

_SPACE: Final = b" \t\r\n\f\v"
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_PIECE: Final = 64 * 1024
_LONGEST_END: Final = 64
"""Of digits and padding signs after the last group of four digits."""
_MOST_PARAMETERS: Final = 1024
"""Characters in front of the comma."""


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """The content of `url`, which starts with `data:`. Parameters and the declared type do not matter,
    `base64` may be in any case, the payload may be percent-encoded. Raises `ImageError`."""
    comma = url.find(",", 0, _MOST_PARAMETERS)
    if comma < 0:
        raise ImageError("invalid_image_url", "this data URL has no comma before its data.")
    is_base64 = "base64" in [parameter.strip().lower() for parameter in url[:comma].split(";")[1:]]
    # Percent-encoding makes three characters of one at most, base64 four of three.
    if len(url) - comma > (4 if is_base64 else 3) * max_bytes + _PIECE:
        raise _too_large(max_bytes)
    payload = _unescaped(_pieces(url, comma + 1))
    return _joined(_from_base64(payload) if is_base64 else payload, max_bytes)


def decode_base64(text: str, max_bytes: int) -> bytes:
    """Base64 of either alphabet, padded or not, with or without line breaks. Raises `ImageError`."""
    return _joined(_from_base64(_pieces(text, 0)), max_bytes)


def _pieces(text: str, start: int) -> Iterator[bytes]:
    for place in range(start, len(text), _PIECE):
        yield text[place : place + _PIECE].encode(errors="replace")


def _unescaped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Percent-encoding undone. Raises `ImageError`."""
    cut = b""  # an escape that goes on in the next piece
    for piece in pieces:
        whole = cut + piece
        end = whole.rfind(b"%", -2)
        whole, cut = (whole, b"") if end < 0 else (whole[:end], whole[end:])
        yield _unescaped_piece(whole)
    yield _unescaped_piece(cut)


def _unescaped_piece(piece: bytes) -> bytes:
    escapes = piece.count(b"%")
    if not escapes:
        return piece
    # Quoted-printable is the same with another sign (and soft line breaks), and has a decoder that takes a nanosecond
    # a byte.
    plain = binascii.a2b_qp(piece.replace(b"=", b"%3D").replace(b"%", b"="))
    if len(plain) != len(piece) - 2 * escapes or b"%\n" in piece or b"%\r" in piece:
        raise ImageError("invalid_image_url", "its percent-encoding is malformed.")
    return plain


def _from_base64(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Raises `ImageError`."""
    kept = b""  # less than a group of four digits, or what may be the end
    for piece in pieces:
        digits = kept + piece.translate(_URL_SAFE, _SPACE)
        padding = digits.find(b"=")
        end = (len(digits) if padding < 0 else padding) // 4 * 4
        kept = digits[end:]
        if len(kept) > _LONGEST_END:
            raise _malformed()
        yield _bytes_of(digits[:end])
    digits = kept.rstrip(b"=")
    yield _bytes_of(digits + b"=" * (-len(digits) % 4))


def _bytes_of(digits: bytes) -> bytes:
    try:
        return binascii.a2b_base64(digits, strict_mode=True)
    except binascii.Error:
        raise _malformed() from None


def _joined(pieces: Iterator[bytes], max_bytes: int) -> bytes:
    found, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        found.append(piece)
    return b"".join(found)


def _malformed() -> ImageError:
    return ImageError("invalid_image_url", "its base64 is malformed.")


def _too_large(max_bytes: int) -> ImageError:
    return ImageError("image_too_large", f"it is larger than {max_bytes} bytes.")
