"""Small pictures made on the spot."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(
    colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (8, 6), kind: str = "PNG"
) -> bytes:
    """A picture of one colour."""
    return encode(Image.new("RGB", size, colour), kind)


def noisy(size: tuple[int, int] = (64, 64), kind: str = "PNG") -> bytes:
    """A picture that does not compress to nothing."""
    return encode(Image.effect_noise(size, 80).convert("RGB"), kind)


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises `width` x `height` pixels and holds almost none."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 16))
        + chunk(b"IEND", b"")
    )
