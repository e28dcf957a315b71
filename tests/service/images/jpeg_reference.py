"""Baseline JPEG by the letter of its specification (ITU T.81), in floating point: Huffman codes, dequantisation, the
inverse transform by its definition. Components are not subsampled, restarts are not known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Planes = npt.NDArray[np.float64]

_ZIGZAG = sorted(((x, y) for x in range(8) for y in range(8)), key=lambda p: (sum(p), p[sum(p) % 2]))
_BASIS = np.array(
    [
        [math.cos((2 * x + 1) * u * math.pi / 16) * (math.sqrt(0.5) if u == 0 else 1) / 2 for u in range(8)]
        for x in range(8)
    ]
)


@dataclass
class _Tables:
    quantisation: dict[int, list[int]] = field(default_factory=dict)
    codes: dict[int, dict[str, int]] = field(default_factory=dict)
    size: tuple[int, int] = (0, 0)
    components: list[tuple[int, int]] = field(default_factory=list)
    """Identifier and quantisation table of each."""


def planes(data: bytes) -> Planes:
    """[height, width, components] of what is stored, before any change of colours, 0 to 255."""
    tables, place = _Tables(), 2
    while data[place + 1] != 0xDA:
        kind, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4])
        _read(tables, kind, data[place + 4 : place + 2 + length])
        place += 2 + length
    length = int.from_bytes(data[place + 2 : place + 4])
    selectors = data[place + 6 : place + 5 + 2 * data[place + 4] : 2]
    body = data[place + 2 + length : data.rindex(b"\xff\xd9")].replace(b"\xff\0", b"\xff")
    return _scan(tables, selectors, "".join(f"{byte:08b}" for byte in body))


def _read(tables: _Tables, kind: int, content: bytes) -> None:
    if kind == 0xDB:
        for start in range(0, len(content), 65):
            tables.quantisation[content[start] & 15] = list(content[start + 1 : start + 65])
    elif kind == 0xC0:
        tables.size = int.from_bytes(content[3:5]), int.from_bytes(content[1:3])
        assert all(content[7 + 3 * n] == 0x11 for n in range(content[5])), "not subsampled"
        tables.components = [(content[6 + 3 * n], content[8 + 3 * n]) for n in range(content[5])]
    elif kind == 0xC4:
        while content:
            counts, content_of = content[1:17], content[17:]
            tables.codes[content[0]] = _codes(counts, content_of)
            content = content_of[sum(counts) :]


def _codes(counts: bytes, values: bytes) -> dict[str, int]:
    found, code, place = {}, 0, 0
    for length, count in enumerate(counts, start=1):
        for value in values[place : place + count]:
            found[f"{code:0{length}b}"] = value
            code += 1
        place += count
        code *= 2
    return found


def _scan(tables: _Tables, selectors: bytes, bits: str) -> Planes:
    width, height = tables.size
    blocks_wide, blocks_high = -(-width // 8), -(-height // 8)
    result = np.zeros((8 * blocks_high, 8 * blocks_wide, len(tables.components)))
    before = [0] * len(tables.components)
    place = 0
    for block in range(blocks_wide * blocks_high):
        top, left = 8 * (block // blocks_wide), 8 * (block % blocks_wide)
        for number, (_, table) in enumerate(tables.components):
            selector = selectors[number]
            dc, ac = tables.codes[selector >> 4], tables.codes[0x10 | (selector & 15)]
            values, place = _block(bits, place, dc, ac)
            before[number] += values[0]
            values[0] = before[number]
            scaled = [value * step for value, step in zip(values, tables.quantisation[table], strict=True)]
            result[top : top + 8, left : left + 8, number] = _inverse(scaled)
    return result[:height, :width]


def _block(bits: str, place: int, dc: dict[str, int], ac: dict[str, int]) -> tuple[list[int], int]:
    values = [0] * 64
    size, place = _symbol(bits, place, dc)
    values[0], place = _number(bits, place, size)
    at = 1
    while at < 64:
        symbol, place = _symbol(bits, place, ac)
        run, size = symbol >> 4, symbol & 15
        if symbol == 0:
            break
        at += run
        if size:
            values[at], place = _number(bits, place, size)
        at += 1
    return values, place


def _symbol(bits: str, place: int, codes: dict[str, int]) -> tuple[int, int]:
    for length in range(1, 17):
        if bits[place : place + length] in codes:
            return codes[bits[place : place + length]], place + length
    raise AssertionError("no such code")


def _number(bits: str, place: int, size: int) -> tuple[int, int]:
    if not size:
        return 0, place
    value = int(bits[place : place + size], 2)
    return value if bits[place] == "1" else value - (1 << size) + 1, place + size


def _inverse(values: list[int]) -> Planes:
    frequencies = np.zeros((8, 8))
    for value, (x, y) in zip(values, _ZIGZAG, strict=True):
        frequencies[y, x] = value
    return np.clip(np.round(_BASIS @ frequencies @ _BASIS.T + 128), 0, 255)


def segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Markers and contents up to the first scan, for tests that put a file together anew."""
    place = 2
    while data[place + 1] != 0xDA:
        length = int.from_bytes(data[place + 2 : place + 4])
        yield data[place + 1], data[place + 4 : place + 2 + length]
        place += 2 + length
