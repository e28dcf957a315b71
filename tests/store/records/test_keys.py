"""Identity of entries: group A of the fault list, and what a key must and must not depend on."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import struct
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import InvalidKey
from store.records.keys import ModelKey, VisualKey, pixel_digest
from tests.store.samples import MODEL, key_of

OTHER: dict[str, Any] = {
    "model_id": "tiny2",
    "revision": "main2",
    "weights_fingerprint": "other",
    "processor": "Qwen2VLImageProcessor max_pixels=501760 min_pixels=3136",
    "dtype": "bfloat16",
    "codec": "int8",
    "prefix_ids": (1, 2),
    "rope": "mrope theta=10000.0 section=16,24,24",
}


def test_a1_same_bytes_in_another_shape_are_another_image() -> None:
    pixels = bytes(range(256)) * 60 + bytes(3 * 30 * 150 - 256 * 60 if 3 * 30 * 150 > 256 * 60 else 0)
    pixels = pixels[: 3 * 30 * 150].ljust(3 * 30 * 150, b"\x07")
    assert pixel_digest(30, 150, pixels) != pixel_digest(150, 30, pixels)


def test_a1_size_is_in_the_entry_key_too() -> None:
    key = key_of(1)
    assert replace(key, width=1, height=2).digest != key.digest


def test_a2_two_palettes_give_two_canonical_images() -> None:
    indices = bytes([1] * 16)
    red = b"".join({0: b"\0\0\0", 1: b"\xff\0\0"}[i] for i in indices)
    blue = b"".join({0: b"\0\0\0", 1: b"\0\0\xff"}[i] for i in indices)
    assert pixel_digest(4, 4, red) != pixel_digest(4, 4, blue)


@pytest.mark.parametrize("field", [field.name for field in fields(ModelKey)])
def test_a5_c8_every_setting_of_the_model_is_in_the_key(field: str) -> None:
    changed = replace(MODEL, **{field: OTHER[field]})
    assert changed.digest != MODEL.digest
    assert replace(key_of(1), model=changed).digest != key_of(1).digest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", "staging"),
        ("tenant", "other"),
        ("kind", "frame"),
        ("format_version", 2),
        ("pixels", bytes(32)),
        ("width", 3),
        ("height", 3),
    ],
)
def test_c8_d7_every_field_of_the_entry_is_in_the_key(field: str, value: Any) -> None:
    assert replace(key_of(1), **{field: value}).digest != key_of(1).digest


def test_a8_digests_are_never_cut() -> None:
    assert len(key_of(1).digest) == len(MODEL.digest) == len(pixel_digest(1, 1, b"abc")) == 32
    digests = {key_of(number).digest for number in range(20_000)}
    assert len(digests) == 20_000
    assert len({digest[:8] for digest in digests}) == 20_000


@given(
    st.lists(st.text(max_size=4), min_size=7, max_size=7),
    st.lists(st.text(max_size=4), min_size=7, max_size=7),
)
def test_fields_do_not_run_into_each_other(left: list[str], right: list[str]) -> None:
    def digest(texts: list[str]) -> bytes:
        model_id, revision, weights, processor, dtype, codec, rope = texts
        return ModelKey(model_id, revision, weights, processor, dtype, codec, (), rope).digest

    assert (digest(left) == digest(right)) == (left == right)


def test_prefix_ids_are_told_apart() -> None:
    variants = [(), (0,), (0, 0), (1,), (256,), (1, 0), (0, 1)]
    digests = [replace(MODEL, prefix_ids=ids).digest for ids in variants]
    assert all(a != b for a, b in itertools.combinations(digests, 2))


@pytest.mark.parametrize(
    ("width", "height", "pixels"), [(1, 1, b"ab"), (0, 1, b""), (2, 1, b"abc"), (-1, -1, b"abc")]
)
def test_pixels_that_do_not_fit_the_size_are_refused(width: int, height: int, pixels: bytes) -> None:
    with pytest.raises(InvalidKey):
        pixel_digest(width, height, pixels)


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(key_of(1), pixels=b"short"),
        lambda: replace(key_of(1), width=-1).digest,
        lambda: replace(MODEL, prefix_ids=(-1,)).digest,
        lambda: replace(MODEL, prefix_ids=(1 << 64,)).digest,
    ],
)
def test_fields_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(InvalidKey):
        make()


def test_the_documented_construction() -> None:
    """What docs/store.md says, in other code."""

    def join(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()

    pixels = join(b"visual-kv/pixels", b"RGB", b"2", b"1", b"abcdef")
    model = join(
        b"visual-kv/model", b"m", b"r", b"w", b"p", b"float32", b"raw", struct.pack("<2Q", 5, 6), b"rope"
    )
    entry = join(b"visual-kv/entry", b"1", b"image", b"ns", b"t", model, pixels, b"2", b"1")
    key = VisualKey(
        "ns",
        "t",
        ModelKey("m", "r", "w", "p", "float32", "raw", (5, 6), "rope"),
        pixel_digest(2, 1, b"abcdef"),
        2,
        1,
    )
    assert key.digest == entry
    assert key.hex == entry.hex()


def test_the_documents_example_is_right() -> None:
    """Another program is checked against these digits."""
    text = (Path(__file__).parents[3] / "docs" / "store.md").read_text()
    pixels = pixel_digest(2, 1, bytes(range(6)))
    model = ModelKey("example/model", "main", "00ff", "processor", "bfloat16", "raw", (1, 2), "rope")
    key = VisualKey("default", "acme", model, pixels, 2, 1)
    for name, digest in (("pixels", pixels), ("model", model.digest), ("entry", key.digest)):
        assert re.search(rf"^    {name} +{digest.hex()}$", text, re.MULTILINE)


def test_c12_digests_do_not_depend_on_the_hash_seed() -> None:
    program = "from tests.store.samples import key_of; print(key_of(5).hex)"
    for seed in ("0", "4711"):
        child = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert child.stdout.strip() == key_of(5).hex
