"""Answers that must have a form: a JSON Schema, a regular expression, one of some choices.

The library llguidance says which tokens may come next; everything else is masked when a token is drawn. A grammar is
bounded when it is compiled, which happens where prompts are laid out, and in every step, so that none holds up others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.calls.format import CallFormat, OwnTokens
from engine.calls.grammar import LAYOUT
from engine.errors import InvalidConstraint
from engine.messages import Constraint
from engine.tools import Tools

# In the library's units: about 50 a microsecond when a lexer is built, 14 in a step of it, 20 in a step of the parser.
LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=100_000, step_lexer_fuel=50_000, step_max_items=20_000, verbose_errors=False
)
# Subschemas that are tried one by one to say where a schema is wrong.
MOST_TRIED: Final = 500
_BY_NAME: Final = ("properties", "$defs", "definitions", "patternProperties")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties", "not", "if", "then", "else")


class Constraints:
    """What a model's tokens may spell. Thread-safe."""

    def __init__(self, tokenizer: Any, vocab: int, stop_tokens: Iterable[int]) -> None:
        """`tokenizer` is the Rust tokenizer, `vocab` the number of logits."""
        self._vocab = vocab
        self._rust, self._stop_tokens = tokenizer, sorted(stop_tokens)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Made for the first request that needs it: a large vocabulary takes a second."""
        return LLTokenizer(self._rust.to_str(), n_vocab=self._vocab, eos_token=self._stop_tokens)

    def follow(self, constraint: Constraint) -> Follower:
        """Raises `InvalidConstraint` for what cannot be followed, with the place of the fault in a schema."""
        matcher = LLMatcher(self._tokenizer, grammar_of(constraint), log_level=0, limits=LIMITS)
        fault = _fault(matcher)
        if fault:
            raise InvalidConstraint(self._place(constraint) + fault)
        return Follower(matcher, self._vocab)

    def follow_calls(self, form: CallFormat, tools: Tools, text: Constraint | None) -> Follower:
        """Answers that `tools` allow, written in the checkpoint's `form` of calls; what is no call follows `text`.
        Raises `InvalidConstraint`, which names the tool at fault."""
        if text is not None and text.kind != "json_schema":
            raise InvalidConstraint("beside tools an answer may be free text or JSON only")
        matcher = LLMatcher(
            self._tokenizer, form.grammar(tools, text, self._own(form)), log_level=0, limits=LIMITS
        )
        fault = _fault(matcher)
        if fault:
            self._blame(tools, text)
            raise InvalidConstraint(f"the tools together: {fault}")
        return Follower(matcher, self._vocab)

    def _own(self, form: CallFormat) -> OwnTokens:
        added = self._rust.get_added_tokens_decoder()
        tags = {token.content: number for number, token in added.items() if token.content in form.tags}
        text = [n for n, token in added.items() if not token.special and token.content not in form.tags]
        return OwnTokens(tags, tuple(sorted(set(text) - set(self._stop_tokens))))

    def _blame(self, tools: Tools, text: Constraint | None) -> None:
        """Raises for the first schema that is at fault on its own."""
        if text is not None:
            self.follow(text)
        for tool in tools.known:
            try:
                self.follow(Constraint("json_schema", tool.parameters))
            except InvalidConstraint as error:
                raise InvalidConstraint(f"tool '{tool.name}': {error.message}") from None

    def _place(self, constraint: Constraint) -> str:
        """The deepest part of a schema that is at fault on its own, as `properties.a.items: `."""
        if constraint.kind != "json_schema":
            return ""
        schema = json.loads(constraint.text)
        found = ""
        for number, (path, part) in enumerate(_parts(schema, "")):
            if number == MOST_TRIED:
                break
            if not self._is_schema(part, schema):
                found = path if len(path) > len(found) else found
        return f"{found}: " if found else ""

    def _is_schema(self, part: object, root: Mapping[str, object]) -> bool:
        if not isinstance(part, Mapping):
            return isinstance(part, bool)
        grammar = grammar_of(Constraint("json_schema", _alone(part, root)))
        return not LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS).is_error()


class Follower:
    """One answer on its way through a grammar."""

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    def allow(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` [vocab] on the CPU with those of tokens that may not come next at minus infinity."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise InvalidConstraint("the form of the answer is too complex to be followed to its end")
        allowed = np.unpackbits(bits, bitorder="little", count=self._vocab)
        return logits.masked_fill(torch.from_numpy(allowed) == 0, float("-inf"))

    def copy(self) -> Follower:
        """Another answer at the same place."""
        return Follower(self._matcher.deep_copy(), self._vocab)

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


def _fault(matcher: LLMatcher) -> str:
    """Why a form cannot be followed, empty where it can. A first token is tried: what a grammar costs shows by then."""
    trial = matcher.deep_copy()
    if not trial.is_error():
        allowed = np.frombuffer(trial.compute_bitmask(), dtype=np.uint8)
        first = np.flatnonzero(np.unpackbits(allowed, bitorder="little"))
        if len(first):
            trial.consume_token(int(first[0]))
            trial.compute_bitmask()
    return str(trial.get_error()).strip().split("\n")[0]


def grammar_of(constraint: Constraint) -> str:
    if constraint.kind == "json_schema":
        layout: Any = LAYOUT
        return str(LLMatcher.grammar_from_json_schema(constraint.text, overrides=layout))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(constraint.text))
    choices = " | ".join(json.dumps(choice) for choice in json.loads(constraint.text))
    return str(LLMatcher.grammar_from_lark(f"start: {choices}"))


def _parts(schema: object, path: str) -> Iterator[tuple[str, object]]:
    """All subschemas with their paths, those of the outside first."""
    if not isinstance(schema, Mapping):
        return
    inside: list[tuple[str, object]] = []
    for keyword in _BY_NAME:
        named = schema.get(keyword)
        inside += [(f"{keyword}.{name}", part) for name, part in _items(named)]
    for keyword in _LISTED:
        listed = schema.get(keyword)
        inside += [
            (f"{keyword}[{i}]", part) for i, part in enumerate(listed if isinstance(listed, list) else ())
        ]
    inside += [(keyword, schema[keyword]) for keyword in _SINGLE if isinstance(schema.get(keyword), Mapping)]
    for name, part in inside:
        below = f"{path}.{name}" if path else name
        yield below, part
        yield from _parts(part, below)


def _items(named: object) -> Iterable[tuple[str, object]]:
    return named.items() if isinstance(named, Mapping) else ()


def _alone(part: Mapping[str, object], root: Mapping[str, object]) -> str:
    """A subschema as one of its own, with the definitions that it may refer to."""
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return json.dumps({**definitions, **part})
