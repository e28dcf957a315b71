"""What a file is, by its first bytes. Names and declared types are not believed."""

from __future__ import annotations

from typing import Final

_SIGNATURES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
    (b"II+\x00", "tiff"),
    (b"MM\x00+", "tiff"),
    (b"\x00\x00\x00\x0cjP  ", "jpeg 2000"),
    (b"\xff\x4f\xff\x51", "jpeg 2000"),
    (b"\xff\x0a", "jpeg xl"),
    (b"\x00\x00\x00\x0cJXL ", "jpeg xl"),
    (b"8BPS", "psd"),
    (b"%!PS", "eps"),
    (b"\xc5\xd0\xd3\xc6", "eps"),
    (b"%PDF", "pdf"),
    (b"icns", "icns"),
    (b"\x00\x00\x01\x00", "ico"),
    (b"\xd7\xcd\xc6\x9a", "wmf"),
    (b"\x01\x00\x00\x00", "emf"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "zip"),
)
_HEIF_BRANDS: Final = {
    b"avif": "avif",
    b"avis": "avif",
    b"heic": "heic",
    b"heix": "heic",
    b"hevc": "heic",
    b"heim": "heic",
    b"heis": "heic",
    b"mif1": "heic",
    b"msf1": "heic",
}


def sniff(data: bytes) -> str:
    """A lower-case name for the kind of `data`, `unknown` if nothing fits. The name is from this file, never
    from the data, so it is safe to show."""
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        return _HEIF_BRANDS.get(data[8:12], "video")
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "html"
    if head.startswith((b"<svg", b"<?xml")) and b"<svg" in head:
        return "svg"
    return "unknown"
