"""What every codec must do. A codec joins by being registered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from store.codecs.protocol import Codec, codec_named, codecs
from store.errors import CodecError, Rejected
from store.records.entry import ImageKV
from store.records.header import ALIGNMENT, TensorSpec
from store.records.record import Encoded, NamedBuffer, Record, RecordReader, build
from store.records.tensors import DTYPES as TYPES
from store.records.tensors import FIELDS
from tests.store.samples import BUFFERS
from tests.store.tensors import entry_of, layout_of, same, stored

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=codecs().values(), ids=lambda codec: codec.name, scope="module")
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


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_f5_what_is_not_finite_is_given_back_and_never_kept(
    codec: Codec[Any], name: str, value: float
) -> None:
    entry = entry_of(1)
    getattr(entry, name).view(-1)[5] = value
    prepared = codec.prepare(entry)
    assert not prepared.sound
    for field in FIELDS:
        assert torch.equal(getattr(prepared.entry, field).isfinite(), getattr(entry, field).isfinite())
    with pytest.raises(CodecError):
        prepared.pack()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_numbers_are_kept_if_they_come_back_finite(codec: Codec[Any], dtype: torch.dtype) -> None:
    entry = entry_of(1, tokens=70, dtype=dtype)
    entry.keys[:] = torch.finfo(dtype).max * torch.linspace(-1, 1, 70)[:, None]
    entry.values[:] = torch.finfo(dtype).max
    entry.features[:] = torch.finfo(dtype).max
    prepared = codec.prepare(entry)
    assert prepared.sound == all(getattr(prepared.entry, name).isfinite().all() for name in FIELDS)
    if prepared.sound:
        _, record = stored(codec, entry)
        assert same(codec.decode(record.manifest, record.payload), prepared.entry)


def test_f5_a_record_with_numbers_that_are_not_finite_is_outdated(codec: Codec[Any]) -> None:
    """As another program, or a version that did not look, may have written it."""
    _, record = stored(codec, entry_of(1, tokens=70))
    floats = [spec for spec in record.manifest.tensors if spec.dtype != "uint8"]
    assert {spec.name.split(".")[0] for spec in floats} == set(FIELDS)
    for spec in floats:
        for value in (float("nan"), float("inf"), -float("inf")):
            for place in (0, -1):
                changed = with_number(record, spec, place, value)
                with pytest.raises(Rejected) as caught:
                    read_back(codec, changed)
                assert caught.value.reason == "outdated" and spec.name in str(caught.value)


def test_f5_numbers_that_are_not_finite_only_when_they_are_decoded_are_outdated() -> None:
    codec = codec_named("int8")
    _, record = stored(codec, entry_of(1, tokens=70, dtype=torch.float16))
    spec = next(spec for spec in record.manifest.tensors if spec.name == "keys.scale")
    with pytest.raises(Rejected, match="outdated"):
        read_back(codec, with_number(record, spec, 0, 60000.0))


def with_number(record: Record, spec: TensorSpec, place: int, value: float) -> Record:
    """The record with another number, and sound otherwise."""
    payload = bytearray(record.payload)
    dtype = TYPES[spec.dtype]
    numbers = torch.frombuffer(payload, dtype=dtype, count=spec.nbytes // dtype.itemsize, offset=spec.offset)
    numbers[place] = value
    view, manifest = memoryview(payload), record.manifest
    buffers = [
        NamedBuffer(s.name, s.dtype, s.shape, view[s.offset : s.offset + s.nbytes]) for s in manifest.tensors
    ]
    encoded = Encoded(buffers, manifest.attributes)
    return build(manifest.digest, manifest.codec, encoded, manifest.info, BUFFERS)


def read_back(codec: Codec[Any], record: Record) -> Any:
    reader = RecordReader(record.digest, codec.identity, BUFFERS)
    reader.manifest(record.head)
    for piece in record.pieces():
        reader.piece(piece)
    return codec.decode(record.manifest, reader.record().payload)


@pytest.mark.parametrize("tokens", [1, 64, 65])
def test_f5_a_record_fits_the_layout_of_its_entry_and_no_other(codec: Codec[Any], tokens: int) -> None:
    entry = entry_of(1, tokens=tokens)
    _, record = stored(codec, entry)
    own = layout_of(entry)
    assert codec.fits(record.manifest, own)
    for name in ("layers", "kv_heads", "tokens", "head_dim", "levels", "hidden"):
        for size in (getattr(own, name) + 1, 2 * getattr(own, name)):
            assert not codec.fits(record.manifest, replace(own, **{name: size})), name
    assert not codec.fits(record.manifest, replace(own, dtype="bfloat16"))
    # As many numbers, differently arranged.
    assert not codec.fits(record.manifest, replace(own, kv_heads=1, head_dim=8))


def test_f5_a_record_fits_only_with_the_tensors_that_its_codec_writes(codec: Codec[Any]) -> None:
    entry = entry_of(1, tokens=70)
    _, record = stored(codec, entry)
    manifest, own = record.manifest, layout_of(entry)
    first, *others = manifest.tensors
    for tensors in (
        others,
        [first, *manifest.tensors],
        [replace(first, name="more"), *manifest.tensors],
        [replace(first, dtype="float16"), *others],
        [replace(first, shape=first.shape[::-1]), *others],
    ):
        assert not codec.fits(replace(manifest, tensors=tuple(tensors)), own)
    for attributes in ({**manifest.attributes, "more": "1"}, {"keys.dtype": "float64", "keys.width": "-1"}):
        assert not codec.fits(replace(manifest, attributes=attributes), own)


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


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 64, 70, 1 << 40]), max_size=5).map(tuple)
WIDTHS = st.sampled_from(["4", "0", "-1", "", "four", "4.0", str(1 << 62), str(10**30)])


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_a_manifest_says_a_codec_raises_its_own_errors_only(
    codec: Codec[Any], data: st.DataObject
) -> None:
    """A sound frame around nonsense, as another program may write it."""
    entry = entry_of(1, tokens=70)
    _, record = stored(codec, entry)

    def changed(spec: TensorSpec) -> TensorSpec:
        dtype = data.draw(st.sampled_from([spec.dtype, *TYPES]))
        shape = data.draw(st.one_of(st.just(spec.shape), SHAPES))
        other = replace(spec, dtype=dtype, shape=shape)
        return other if other.nbytes <= spec.nbytes else spec

    tensors = tuple(changed(spec) for spec in record.manifest.tensors)
    attributes = dict(record.manifest.attributes)
    for name in data.draw(st.sets(st.sampled_from(sorted(attributes)))) if attributes else ():
        attributes[name] = data.draw(
            WIDTHS if name.endswith("width") else st.sampled_from([*TYPES, "float64"])
        )
    manifest = replace(record.manifest, tensors=tensors, attributes=attributes)
    fits = codec.fits(manifest, layout_of(entry))
    assert fits == (manifest == record.manifest)
    try:
        decoded = codec.decode(manifest, record.payload)
    except (CodecError, Rejected):
        assert not fits
    else:
        assert decoded.tokens == decoded.keys.shape[2]
