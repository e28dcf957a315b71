"""What every codec must do. A codec joins by being registered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from store.codecs.protocol import Codec, codecs
from store.errors import CodecError
from store.records.entry import ImageKV
from store.records.header import ALIGNMENT
from tests.store.samples import BUFFERS
from tests.store.tensors import entry_of, same, stored

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=codecs().values(), ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 64, 65, 200])
def test_a_hit_gives_what_the_compile_gave(codec: Codec[Any], dtype: torch.dtype, tokens: int) -> None:
    entry = entry_of(tokens, tokens=tokens, dtype=dtype)
    prepared, record = stored(codec, entry)
    assert same(codec.decode(record.manifest, record.payload), prepared)
    assert same(codec.roundtrip(entry), prepared)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shapes_and_dtypes_stay(codec: Codec[Any], dtype: torch.dtype) -> None:
    entry = entry_of(1, tokens=70, dtype=dtype)
    prepared, _ = stored(codec, entry)
    for name in ("keys", "values", "features", "value_norms"):
        before, after = getattr(entry, name), getattr(prepared, name)
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
        assert after.is_contiguous()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_input_comes_through(codec: Codec[Any], value: float) -> None:
    entry = entry_of(1)
    entry.keys[0, 0, 0, 0] = value
    entry.values[1, 0, 0, 0] = value
    prepared, record = stored(codec, entry)
    assert same(codec.decode(record.manifest, record.payload), prepared)
    assert torch.equal(prepared.keys.isfinite(), entry.keys.isfinite())


@pytest.mark.parametrize("constant", [0.0, -3.5, 60000.0])
def test_constant_tensors_come_through(codec: Codec[Any], constant: float) -> None:
    entry = entry_of(1)
    entry.keys.fill_(constant)
    entry.values.fill_(constant)
    prepared, record = stored(codec, entry)
    assert same(codec.decode(record.manifest, record.payload), prepared)
    assert torch.allclose(prepared.keys, entry.keys, rtol=1e-3)


def test_the_size_is_known_beforehand(codec: Codec[Any]) -> None:
    entry = entry_of(1, tokens=300, dtype=torch.bfloat16)
    _, record = stored(codec, entry)
    padding = ALIGNMENT * len(record.manifest.tensors)
    assert record.payload.nbytes - padding <= codec.payload_bytes(entry) <= record.payload.nbytes


def test_decoded_tensors_keep_their_memory(codec: Codec[Any]) -> None:
    entry = entry_of(1, tokens=70)
    prepared, record = stored(codec, entry)
    decoded = codec.decode(record.manifest, record.payload)
    del record
    for _ in range(4):
        BUFFERS.take(1 << 18)[:] = b"\xff" * (1 << 18)
    assert same(decoded, prepared)


def test_a_record_without_a_tensor_is_a_codec_error(codec: Codec[Any]) -> None:
    _, record = stored(codec, entry_of(1))
    kept = tuple(spec for spec in record.manifest.tensors if spec.name != "features")
    manifest = type(record.manifest)(
        record.manifest.digest,
        record.manifest.codec,
        kept,
        record.manifest.payload_bytes,
        record.manifest.pieces,
        record.manifest.info,
        record.manifest.attributes,
    )
    with pytest.raises(CodecError):
        codec.decode(manifest, record.payload)


def test_tensors_that_are_not_contiguous_are_a_codec_error(codec: Codec[Any]) -> None:
    entry = entry_of(1, tokens=8)
    strided = ImageKV(entry.keys, entry.values, entry.features.transpose(1, 2), entry.value_norms)
    with pytest.raises(CodecError):
        codec.prepare(strided).pack()
