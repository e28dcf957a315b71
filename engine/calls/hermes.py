"""Calls as Hermes writes them, and after it the Qwen family: JSON with name and arguments between two tags."""

from __future__ import annotations

import json
import re
from typing import Final

from engine.calls.format import CallPiece, OwnTokens, Piece
from engine.calls.grammar import json_rule
from engine.messages import Constraint
from engine.overlap import overlap
from engine.tools import Tools

MARKER: Final = "<tool_call>"
_HEAD: Final = re.compile(r'\n\{"name": "([a-zA-Z0-9_-]{1,64})", "arguments": (?=\{)')
_LONGEST_HEAD: Final = len('\n{"name": "", "arguments": {') + 64
_BEFORE_CLOSE: Final = "}\n"
_CLOSE: Final = "</tool_call>"
_TAIL: Final = _BEFORE_CLOSE + _CLOSE
# Between two calls, and between text and a call.
_GAP: Final = "\n"


class Hermes:
    """`CallFormat`."""

    name = "Hermes"
    tags: tuple[str, ...] = (MARKER, _CLOSE)

    def written(self, name: str, arguments: str) -> str:
        return f'{MARKER}\n{{"name": "{name}", "arguments": {arguments}{_TAIL}'

    def grammar(self, tools: Tools, form: Constraint | None, own: OwnTokens) -> str:
        marker, close = (_spelled(tag, own) for tag in self.tags)
        rules = [f"calls: call ({json.dumps(_GAP)} {marker} call)*" if tools.parallel else "calls: call"]
        called = [tool for tool in tools.known if tool.name in tools.callable]
        rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(called)))}")
        for i, tool in enumerate(called):
            head = json.dumps(f'\n{{"name": "{tool.name}", "arguments": ')
            arguments = json_rule(tool.parameters, type="object")
            rules.append(f"call_{i}: {head} {arguments} {json.dumps(_BEFORE_CLOSE)} {close}")
        return "\n".join([*_starts(tools, form, marker, own), *(rules if tools.use != "none" else [])])

    def reader(self) -> HermesReader:
        return HermesReader()


def _starts(tools: Tools, form: Constraint | None, marker: str, own: OwnTokens) -> list[str]:
    """The rules of what an answer may be, over `calls` for all behind the first marker."""
    if tools.use == "required":
        return [f"start: {marker} calls"]
    if form is not None:
        calls = f" | {marker} calls" if tools.use == "auto" else ""
        return [f"start: form{calls}", f"form: {json_rule(form.text)}"]
    token = f"<[{','.join(map(str, own.text))}]>" if own.text else ""
    text = [
        f"text: TEXT ({token} TEXT)*" if token else "text: TEXT",
        rf"TEXT: /(?s:.*)/ & ~/(?s:.*){MARKER}(?s:.*)/",
    ]
    if tools.use == "none":
        return ["start: text", *text]
    if MARKER in own.tags:
        return [f"start: text | text {marker} calls", *text]
    before = f"(TEXT {token})* " if token else ""
    return [f"start: text | {before}begun calls", *text, f"begun[lazy]: /(?s:.*)/ {marker}"]


def _spelled(tag: str, own: OwnTokens) -> str:
    """A tag in a grammar, where it is a token of its own or text as any other."""
    return f"<[{own.tags[tag]}]>" if tag in own.tags else json.dumps(tag)


class HermesReader:
    """`CallReader`. What stands where a call would have to go on and is none of it stays text."""

    def __init__(self) -> None:
        self.whole_calls = 0
        self._begun = 0
        self._held = ""
        self._state = self._text
        self._object = _Object()

    def add(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            state, before = self._state, self._held
            pieces += [piece for piece in state() if piece]
            if (self._state, self._held) == (state, before) or not self._held:
                return pieces

    def flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._state == self._tail and _TAIL.startswith(held):
            return []  # an end of a call that was cut off
        return [held] if held else []

    def _text(self) -> list[Piece]:
        """Until a marker. The line break before it belongs to the call."""
        at = self._held.find(MARKER)
        if at < 0:
            keep = max(overlap(self._held, _GAP + MARKER), overlap(self._held, MARKER))
            text, self._held = _split(self._held, len(self._held) - keep)
            return [text]
        text, self._held = _split(self._held, at)
        self._state = self._name
        if text.endswith(_GAP):
            text, self._held = text.removesuffix(_GAP), _GAP + self._held
        return [text]

    def _name(self) -> list[Piece]:
        start = self._held.index(MARKER) + len(MARKER)
        head = _HEAD.match(self._held, start)
        if head is not None:
            self._held = self._held[head.end() :]
            self._state, self._object = self._arguments, _Object()
            self._begun += 1
            return [CallPiece(self._begun - 1, head.group(1), "")]
        if len(self._held) - start < _LONGEST_HEAD:
            return []
        text, self._held = _split(self._held, start)
        self._state = self._text
        return [text]

    def _arguments(self) -> list[Piece]:
        end = self._object.end_in(self._held)
        arguments, self._held = _split(self._held, len(self._held) if end is None else end)
        if end is not None:
            self._state = self._tail
        return [CallPiece(self._begun - 1, None, arguments)] if arguments else []

    def _tail(self) -> list[Piece]:
        if not self._held.startswith(_TAIL):
            if not _TAIL.startswith(self._held):
                self._state = self._text
            return []
        self._held = self._held.removeprefix(_TAIL)
        self.whole_calls += 1
        self._state = self._text
        return []


class _Object:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end_in(self, text: str) -> int | None:
        """Where in `text`, the next piece, the object is over; None where it goes on."""
        for i, character in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return None


def _split(text: str, at: int) -> tuple[str, str]:
    return text[:at], text[at:]
