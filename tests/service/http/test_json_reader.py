"""JSON that arrives in pieces: read as the standard library reads it, refused in words, and never for long at once."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import RequestError
from service.http.json_reader import PIECE_BYTES, JsonLimits, JsonReader
from tests.service.http.reading import fault, read

MIB = 2**20
LONG = b"z" * 400
STEPS = (1, 2, 3, 7, 255, 256, 257, PIECE_BYTES)
NOTHING_IS_TOO_MUCH = JsonLimits(wide=2**30)

characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters, max_size=8) | st.builds(
    lambda text, times: text * times, st.text(characters, min_size=1, max_size=12), st.integers(1, 100)
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(characters, max_size=12), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values, st.booleans(), st.sampled_from([None, 1]), st.booleans(), st.sampled_from(STEPS))
@settings(max_examples=150, deadline=None)
def test_what_is_json_is_read_however_it_is_cut(
    value: Any, ascii_only: bool, indent: int | None, slashes: bool, step: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    if slashes:
        text = text.replace("/", "\\/")
    assert read(text.encode(), step, NOTHING_IS_TOO_MUCH) == json.loads(text)


@given(st.binary(max_size=60), st.binary(max_size=20))
@settings(max_examples=150, deadline=None)
def test_what_is_not_json_is_refused_however_it_is_cut(start: bytes, end: bytes) -> None:
    for body in (start, b'["' + start + b'"]', b'{"a":"' + LONG + start + b'",' + end + b"}"):
        try:
            expected = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse, object_pairs_hook=_unique)
            json.dumps(expected, ensure_ascii=False).encode()  # no half characters
        except ValueError:
            for step in (1, 5, PIECE_BYTES):
                assert fault(body, step, NOTHING_IS_TOO_MUCH).message
        else:
            assert read(body, 5, NOTHING_IS_TOO_MUCH) == expected


def _refuse(constant: str) -> None:
    raise ValueError


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


FAULTS: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "invalid_json", "it is empty"),
    "blanks": (b" \n", "invalid_json", "it is empty"),
    "cut": (b'{"a":1', "invalid_json", "ends too early"),
    "cut in a string": (b'{"a":"x', "invalid_json", "ends in the middle of a string"),
    "cut in a long string": (b'{"a":"' + LONG, "invalid_json", "ends in the middle of a string"),
    "no escape": (b'{"a":"\\q"}', "invalid_json", "a backslash that begins no escape"),
    "no escape, long": (b'{"a":"' + LONG + b'\\u12x4"}', "invalid_json", "a backslash that begins no escape"),
    "a cut emoji": (b'{"a":"\\ud83d"}', "invalid_json", "half of a character"),
    "its other half": (b'{"a":"\\ude00"}', "invalid_json", "half of a character"),
    "a cut emoji, long": (
        b'{"a":"' + LONG + b"\\ud83d" + LONG + b'"}',
        "invalid_json",
        "half of a character",
    ),
    "an emoji cut in its bytes": (b'{"a":"\xf0\x9f\x98"}', "invalid_json", "not UTF-8"),
    "the same, long": (b'{"a":"' + LONG + b'\xf0\x9f\x98"}', "invalid_json", "not UTF-8"),
    "latin-1": (b'{"a":"\xe9t\xe9"}', "invalid_json", "not UTF-8"),
    "utf-16": ('{"a":"x"}'.encode("utf-16"), "invalid_json", "send UTF-8"),
    "utf-16 without a mark": ('{"a":"x"}'.encode("utf-16-le"), "invalid_json", "send UTF-8"),
    "a line break in a string": (b'{"a":"x\ny"}', "invalid_json", r"a line break is written as \n"),
    "NaN": (b'{"a":NaN}', "invalid_json", "a word that is not"),
    "infinity": (b"[-Infinity]", "invalid_json", "a word that is not"),
    "another word": (b'{"a":\n nope}', "invalid_json", "line 2, column 2, cannot stand there"),
    "something behind it": (b'{"a":1}}', "invalid_json", "line 1, column 8, cannot stand there"),
    "no comma": (b'["' + LONG + b'" "b"]', "invalid_json", "line 1 cannot stand there"),
    "twice": (b'{"a":1,"b":2,"a":3}', "invalid_json", "the field 'a' twice"),
    "many digits": (b"[" + b"9" * 129 + b"]", "invalid_json", "longer than 128 characters"),
    "many decimals": (b"[0." + b"9" * 127 + b"]", "invalid_json", "longer than 128 characters"),
    "a long name": (b'{"' + LONG + b'" : 1}', "unknown_parameter", "longer than 256 bytes"),
    "gzip": (b"\x1f\x8b\x08\x00\x00", "unsupported_media_type", "compressed"),
    "deep": (b"[[[[[", "invalid_request", "deeper than 4 levels"),
    "many": (b"[" + b"1," * 10, "invalid_request", "more than 10 items"),
    "many fields": (b'{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}', "invalid_request", "more than 10 items"),
    "many in all": (b"[[1],[1],[1],[1],[1],[1]]", "invalid_request", "more than 10 items"),
    "wide": (b'["' + LONG * 3 + "é".encode() + b'"]', "request_too_large", "more than 1000 characters"),
    "wide in all": (
        b'["' + b'","'.join([LONG + "é".encode()] * 3) + b'"]',
        "request_too_large",
        "more than 1000",
    ),
}


@pytest.mark.parametrize("step", [1, 5, PIECE_BYTES])
@pytest.mark.parametrize(("body", "code", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_refusal_names_its_cause(body: bytes, code: str, words: str, step: int) -> None:
    error = fault(body, step)
    assert (error.code, words in error.message) == (code, True), error.message


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b"[[[[1,2],3],4],5]", [[[[1, 2], 3], 4], 5]),
        (b"[1,1,1,1,1,1,1,1,1,1]", [1] * 10),
        (b"[" + b"9" * 128 + b"]", [int("9" * 128)]),
        (b'["' + LONG * 2 + "é".encode() + b'"]', [LONG.decode() * 2 + "é"]),
        (b'["' + LONG * 9 + b'","' + LONG * 9 + b'"]', [LONG.decode() * 9] * 2),
        (b'"' + LONG + b'\\ud83d\\ude00"', LONG.decode() + "😀"),
    ],
    ids=["a mark of byte order", "depth", "items", "digits", "wide", "long and plain", "a string alone"],
)
def test_what_is_just_within_the_limits_is_read(body: bytes, value: Any) -> None:
    assert [read(body, step) for step in (1, 5, PIECE_BYTES)] == [value] * 3


def test_names_are_cut_before_they_are_shown() -> None:
    name = b"a\\n" * 80
    assert len(fault(b'{"' + name + b'":1,"' + name + b'":1}').message) < 160


HOSTILE = {
    "one string": b'["' + b"A" * 20 * MIB + b'"]',
    "escapes": b'["' + b"\\n" * 5 * MIB + b'"]',
    "long escapes": b'["' + b"\\u0041" * 2 * MIB + b'"]',
    "emojis": b'["' + "😀".encode() * 3 * MIB + b'"]',
    "a late emoji": b'["' + b"A" * 20 * MIB + "😀".encode() + b"A" * MIB + b'"]',
    "numbers": b'{"messages":[' + b"1," * 5 * MIB,
    "names": b"{" + b",".join(b'"k%d":1' % i for i in range(200_000)),
    "texts": b"[" + b'"aaaaaaaaaaaaaaa",' * (MIB // 2),
    "blanks": b"[" + b" " * 10 * MIB,
    "brackets": b"[" * 10 * MIB,
    "empty lists": b"[" + b"[]," * 3 * MIB,
    "long numbers": b"[" + (b"9" * 120 + b",") * 50_000,
    "strings a little too long to stay": b"[" + (b'"' + b"a" * 257 + b'",') * 40_000,
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_body_holds_the_loop(body: bytes) -> None:
    """Counted in processor time, which a busy machine hardly changes, against a list that nobody minds."""
    yardstick = _seconds(lambda: json.loads(b"[" + b"1," * 500_000 + b"1]"))
    assert max(map(_seconds, _reading(body))) < 4 * yardstick


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_body_takes_much_more_memory_than_it_is_long(body: bytes) -> None:
    tracemalloc.start()
    try:
        with suppress(RequestError):
            for step in _reading(body):
                step()
        assert tracemalloc.get_traced_memory()[1] < 2.5 * len(body) + 8 * MIB
    finally:
        tracemalloc.stop()


def _reading(body: bytes) -> Iterator[Callable[[], object]]:
    reader = JsonReader(JsonLimits())
    for start in range(0, len(body), PIECE_BYTES):
        yield partial(reader.feed, body[start : start + PIECE_BYTES])
    yield reader.finish


def _seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    with suppress(RequestError):
        work()
    return time.thread_time() - started
