"""Pages of an LMDB file, found by kind, and bits of them turned over."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path

PAGE = 4096
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_NO_PAGE = (1 << 64) - 1


def kinds(data: Path) -> dict[str, list[int]]:
    """Numbers of the pages in use by kind: meta, branch, leaf, overflow (first pages), and free: where the free list
    is."""
    raw = data.read_bytes()
    metas = [0, 1]
    newest = max(metas, key=lambda page: _number(raw, page, 144))
    found: dict[str, list[int]] = defaultdict(list, meta=metas)
    for kind, root in (("free", _number(raw, newest, 80)), ("", _number(raw, newest, 128))):
        if root != _NO_PAGE:
            _walk(raw, root, kind, found)
    return dict(found)


def _walk(raw: bytes, page: int, kind: str, found: dict[str, list[int]]) -> None:
    flags, lower = struct.unpack_from("<HH", raw, page * PAGE + 10)
    found[kind or {_BRANCH: "branch", _LEAF: "leaf"}[flags]].append(page)
    for index in range((lower - 16) // 2):
        (offset,) = struct.unpack_from("<H", raw, page * PAGE + 16 + 2 * index)
        low, high, node, key = struct.unpack_from("<HHHH", raw, page * PAGE + offset)
        start = offset + 8 + key
        if flags == _BRANCH:
            _walk(raw, low | high << 16 | node << 32, kind, found)
        elif node & 1:
            found[kind or "overflow"].append(_number(raw, page, start))
        elif node & 2 and (root := _number(raw, page, start + 40)) != _NO_PAGE:
            _walk(raw, root, kind, found)


def _number(raw: bytes, page: int, offset: int) -> int:
    (number,) = struct.unpack_from("<Q", raw, page * PAGE + offset)
    return int(number)


def flip(data: Path, page: int, bit: int) -> None:
    """Turn one bit of a page over, as a failing disk or memory does."""
    with data.open("r+b") as stream:
        stream.seek(page * PAGE + bit // 8)
        byte = stream.read(1)[0]
        stream.seek(page * PAGE + bit // 8)
        stream.write(bytes([byte ^ 1 << bit % 8]))
