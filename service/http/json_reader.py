"""JSON read while it arrives, in time and memory that its sender cannot choose.

A JSON parser in C holds the interpreter from the first byte to the last: a picture of 60 MB in base64, or a list of
a million numbers, would stop every other request meanwhile, on whatever thread it ran. So a body is looked through
piece by piece. Long strings are cut out and decoded on the way; what is left is small, since its depth and the number
of its items are bounded as they are counted, and goes to the parser of the standard library.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.errors import RequestError, shown

PIECE_BYTES: Final = 16 * 1024
"""To be fed at once: takes some milliseconds at most, whatever is in it."""
_LONG_BYTES: Final = 256
"""Strings from this length on are cut out."""
_JOINED: Final = 1024**2
"""Characters of a long string, at least, that are joined to it at once."""
_SKELETON_BYTES: Final = 8 * 1024**2
_NUMBER_CHARACTERS: Final = 128
_FIELDS: Final = 2048

_SPECIAL: Final = re.compile(rb'["\[\]{},:NI]')
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*+')
# An escape that is cut off, or half of a pair of them, ends the match: the rest may be in the next piece.
_STRING: Final = re.compile(
    rb'(?:[^"\\\x00-\x1f]++'
    rb'|\\["\\/bfnrt]'
    rb"|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb")*+"
)
_LONGEST_ESCAPE: Final = 12
_GZIP: Final = b"\x1f"  # the first byte of its mark, and of no JSON
COMPRESSED: Final = (
    "The body is compressed, which is not understood: send plain JSON without 'content-encoding'."
)
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_OPEN, _CLOSE, _NEXT = b"[{", b"]}", b",:"


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """`depth` of lists and objects in each other, `items` of all of them together (a name counts as one), and
    `wide` characters: of all long strings that are more than ASCII. In memory a single emoji makes four bytes of
    every character of its string."""

    depth: int = 64
    items: int = 20_000
    wide: int = 4 * 1024**2


class JsonReader:
    """`feed` it the body, then take what it says from `finish`. Both raise `RequestError` at the first fault."""

    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        self._skeleton = bytearray()
        self._strings: list[str] = []
        self._carry = b""
        self._cut: _LongString | None = None
        self._name_is_long = False
        self._depth = 0
        self._items = 0
        self._wide = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes, best no more than `PIECE_BYTES` of them."""
        if piece.startswith(_GZIP) and not self._skeleton and not self._carry:
            raise RequestError("unsupported_media_type", COMPRESSED)
        data = self._carry + piece
        self._carry = b""
        at = 0
        while at < len(data):
            at = self._outside(data, at) if self._cut is None else self._go_on(self._cut, data, at)

    def finish(self) -> Any:
        """The value, of dicts, lists, strings, numbers, booleans and None."""
        if self._carry or self._cut is not None:
            # Nothing more comes that could make an escape of what is none.
            _string_end(self._carry + b" " * _LONGEST_ESCAPE, 1 if self._cut is None else 0)
            raise _invalid("it ends in the middle of a string")
        strings = iter(self._strings)
        try:
            text = self._skeleton.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _not_utf8() from None
        try:
            return json.loads(
                text,
                # No constant is let through by `feed`: every one is the place of a string that was cut out.
                parse_constant=lambda _: next(strings),
                parse_int=lambda digits: int(_bounded(digits)),
                parse_float=lambda digits: float(_bounded(digits)),
                object_pairs_hook=_object,
            )
        except json.JSONDecodeError as error:
            raise _invalid(_fault(error, text, whole=not self._strings)) from None

    def _outside(self, data: bytes, at: int) -> int:
        """From `at`, which is in no string, to the next string that is not kept whole, or the end."""
        kept_from = at
        while found := _SPECIAL.search(data, at):
            at = found.start()
            if data[at] != _QUOTE:
                self._count(data[at : at + 1])
                at += 1
                continue
            end = _string_end(data, at + 1)
            if end < len(data) and data[end] == _QUOTE and end - at <= _LONG_BYTES:
                self._name_is_long = False
                at = end + 1
                continue
            self._keep(data[kept_from:at])
            if len(data) - at <= _LONG_BYTES:
                self._carry = data[at:]
                return len(data)
            self._cut = _LongString()
            return at + 1
        self._keep(data[kept_from:])
        return len(data)

    def _go_on(self, cut: _LongString, data: bytes, at: int) -> int:
        """From `at`, which is in a string to be cut out, to its end or the end of what there is of it."""
        end = _string_end(data, at)
        closed = end < len(data) and data[end] == _QUOTE
        self._wide += cut.add(data[at:end], closed)
        if self._wide > self._limits.wide:
            message = f"The texts in the body have more than {self._limits.wide} characters."
            raise RequestError("request_too_large", message)
        if closed:
            self._strings.append(cut.text())
            self._cut = None
            self._name_is_long = True  # unless no colon comes next
            self._keep(b"NaN")
            return end + 1
        self._carry = data[end:]
        return len(data)

    def _count(self, special: bytes) -> None:
        if special in _OPEN:
            self._depth += 1
            if self._depth > self._limits.depth:
                raise RequestError(
                    "invalid_request", f"The body is nested deeper than {self._limits.depth} levels."
                )
        elif special in _CLOSE:
            self._depth -= 1
        elif special not in _NEXT:
            raise _invalid("it holds a word that is not 'true', 'false' or 'null'")
        elif special == b":" and self._name_is_long:
            raise RequestError("unknown_parameter", f"A parameter's name is longer than {_LONG_BYTES} bytes.")
        self._name_is_long = False
        self._items += special not in _CLOSE
        if self._items > self._limits.items:
            raise RequestError("invalid_request", f"The body has more than {self._limits.items} items.")

    def _keep(self, part: bytes) -> None:
        self._skeleton += part
        if len(self._skeleton) > _SKELETON_BYTES:
            message = f"The body has more than {_SKELETON_BYTES} bytes outside of its long strings."
            raise RequestError("request_too_large", message)


class _LongString:
    """A string that arrives in parts, none of which ends inside of an escape."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._parts: list[str] = []  # of what comes behind it
        self._length = 0
        self._is_wide = False

    def add(self, raw: bytes, last: bool) -> int:
        """By how many characters it has become longer, none as long as all of them are ASCII."""
        try:
            part = self._decoder.decode(raw, last)
        except UnicodeDecodeError:
            raise _not_utf8() from None
        if "\\" in part:
            part = json.loads(f'"{part}"')
        if self._length - len(self._text) > max(_JOINED, len(self._text) // 8):
            self._join()  # what was found short enough when it was counted
        counted = self._length if self._is_wide else 0
        self._parts.append(part)
        self._length += len(part)
        self._is_wide = self._is_wide or not part.isascii()
        return self._length - counted if self._is_wide else 0

    def text(self) -> str:
        """The whole of it, once."""
        self._join()
        return self._text

    def _join(self) -> None:
        """A string that nobody else knows grows where it stands, so that no step takes the time of the whole. Where the
        interpreter copies it all the same, as it does under a debugger, it was copied some eight times at the end."""
        text, self._text = self._text, ""
        text += "".join(self._parts)
        self._text = text
        self._parts.clear()


def _string_end(data: bytes, at: int) -> int:
    """Where the string ends that `at` is in: at its closing quote, or where the rest of it has not arrived.
    Raises `RequestError` where neither is the case."""
    plain = _PLAIN.match(data, at)
    end = at if plain is None else plain.end()
    if end < len(data) and data[end] == _BACKSLASH:
        rest = _STRING.match(data, end)
        end = end if rest is None else rest.end()
    if end < len(data) and data[end] != _QUOTE:
        _check_stop(data[end : end + _LONGEST_ESCAPE])
    return end


def _check_stop(rest: bytes) -> None:
    """Raises `RequestError` where a string cannot go on with `rest`, whatever comes behind it."""
    if rest[0] == 0:
        raise _invalid("it holds a zero byte, as text in UTF-16 does; send UTF-8")
    if rest[0] != _BACKSLASH:
        raise _invalid("a string in it holds a control character; a line break is written as \\n")
    if len(rest) < _LONGEST_ESCAPE:
        return
    if re.match(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", rest):
        raise _invalid("a string in it holds half of a character: a surrogate without its other half")
    raise _invalid("a string in it holds a backslash that begins no escape")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _FIELDS:
        raise RequestError("invalid_request", f"An object in the body has more than {_FIELDS} fields.")
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise _invalid(f"an object in it has the field '{shown(twice)}' twice")
    return found


def _bounded(number: str) -> str:
    """Time to convert digits goes with the square of their number."""
    if len(number) > _NUMBER_CHARACTERS:
        raise _invalid(f"a number in it is longer than {_NUMBER_CHARACTERS} characters")
    return number


def _fault(error: json.JSONDecodeError, text: str, whole: bool) -> str:
    """`whole`: nothing was cut out of `text`, which else leaves no more than the lines as they were."""
    if error.pos >= len(text.rstrip()):
        return "it ends too early" if text.strip() else "it is empty"
    column = f", column {error.colno}," if whole else ""
    return f"what stands in line {error.lineno}{column} cannot stand there"


def _invalid(why: str) -> RequestError:
    return RequestError("invalid_json", f"The body is not valid JSON: {why}.")


def _not_utf8() -> RequestError:
    return _invalid("it is not UTF-8")
