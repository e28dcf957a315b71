"""Hermes calls: read back from any pieces without losing a character, and forced upon a model of noise."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from engine.answer.constraint import Constraints, Follower
from engine.answer.outlet import Outlet
from engine.answer.sampling import Sampler
from engine.calls.format import CallPiece, Piece
from engine.calls.hermes import MARKER, Hermes
from engine.errors import InvalidConstraint
from engine.messages import Constraint, Sampling
from engine.tools import Tool, Tools, ToolUse
from tests.engine.conftest import Bench

HERMES = Hermes()
SCHEMAS: dict[str, Any] = {
    "click": {
        "type": "object",
        "properties": {
            "x": {"type": "integer", "minimum": 0, "maximum": 99},
            "how": {"enum": ["left", "right"]},
        },
        "required": ["x", "how"],
        "additionalProperties": False,
    },
    "say": {
        "properties": {"text": {"type": "string", "maxLength": 8}},
        "required": ["text"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}


def tools(use: ToolUse = "auto", only: tuple[str, ...] = tuple(SCHEMAS), parallel: bool = True) -> Tools:
    known = tuple(Tool(name, "{}", json.dumps(schema)) for name, schema in SCHEMAS.items())
    return Tools(known, use, only, parallel)


def merged(pieces: list[Piece]) -> list[Any]:
    """Text runs and calls as [name, arguments], however many pieces they came in."""
    out: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str):
            if out and isinstance(out[-1], str):
                out[-1] += piece
            else:
                out.append(piece)
        elif piece.name is not None:
            out.append([piece.name, piece.arguments])
            assert piece.call == sum(isinstance(part, list) for part in out) - 1
        else:
            out[-1][1] += piece.arguments
    return out


def read(texts: list[str], stops: tuple[str, ...] = ()) -> tuple[list[Any], Outlet]:
    outlet = Outlet(stops, HERMES.reader())
    pieces = [piece for text in texts for piece in outlet.add(text)]
    if not outlet.stopped:
        pieces += outlet.flush()
    return merged(pieces), outlet


def split(text: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randrange(12))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def written(*parts: str | tuple[str, Any]) -> str:
    """Text and calls as a checkpoint writes them."""
    out = ""
    for part in parts:
        if isinstance(part, str):
            out += part
        else:
            out += ("\n" if out else "") + HERMES.written(part[0], json.dumps(part[1], ensure_ascii=False))
    return out


ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.one_of(
            st.integers(), st.booleans(), st.none(), st.text(alphabet='{}[]"\\\n<tool_call>é', max_size=9)
        ),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
CALLS = st.lists(st.tuples(st.sampled_from(["click", "a-b_9"]), ARGUMENTS), min_size=1, max_size=3)
TEXT = st.text(alphabet="<tool_cal>\n{ }é", max_size=12).filter(lambda text: MARKER not in text)


@settings(max_examples=150, deadline=None)
@given(TEXT, CALLS, st.integers(0, 2**32))
def test_calls_are_found_in_any_pieces(text: str, calls: list[tuple[str, Any]], seed: int) -> None:
    found, outlet = read(split(written(text, *calls), seed))
    said = [text] if text else []
    assert found == [*said, *([name, json.dumps(args, ensure_ascii=False)] for name, args in calls)]
    assert outlet.calls == len(calls)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet='<tool_cal>\n{}":nmergust, ab', max_size=60), st.integers(0, 2**32))
def test_text_that_is_no_call_is_never_lost(text: str, seed: int) -> None:
    assert read(split(text, seed))[0] == ([text] if text else [])


@pytest.mark.parametrize(
    "text",
    [
        MARKER,
        f"so: {MARKER}",
        f"{MARKER}\n{MARKER}\n",
        f'\n{MARKER}\n{{"name": "a b", "arguments": {{}}}}',
        f'{MARKER}\n{{"name": "click", "arguments": 7}}' + " and more text than any head has" * 4,
    ],
)
def test_what_only_begins_like_a_call_is_text(text: str) -> None:
    for seed in range(10):
        assert read(split(text, seed))[0] == [text]


def test_a_call_that_was_cut_off_is_told_as_far_as_it_came() -> None:
    whole = written("ok", ("click", {"x": 1, "how": "left"}))
    for end in range(len("ok\n") + len(HERMES.written("click", "")) - len("}\n</tool_call>") + 1, len(whole)):
        (text, (name, arguments)), outlet = read([whole[:end]])
        assert (text, name) == ("ok", "click")
        assert '{"x": 1, "how": "left"}'.startswith(arguments)
        assert outlet.calls == 0


def test_a_stop_string_ends_text_and_never_a_call() -> None:
    whole = written("abc", ("say", {"text": "STOP"}))
    assert read(split(whole, 3), ("STOP",))[0] == ["abc", ["say", '{"text": "STOP"}']]
    found, outlet = read(split(whole, 3), ("bc",))
    assert (found, outlet.stopped, outlet.calls) == (["a"], True, 0)
    # The beginning of a stop string before a call is text after all.
    assert read(split(whole, 5), ("c\nx",))[0] == ["abc", ["say", '{"text": "STOP"}']]


@pytest.fixture(scope="module")
def constraints(bench: Bench) -> Constraints:
    return Constraints(bench.prompt.tokenizer, bench.family.shape.vocab, bench.family.stop_tokens)


def noise(bench: Bench, follower: Follower, seed: int) -> str:
    """An answer drawn from logits of noise, to its end."""
    vocab = bench.family.shape.vocab
    sampler = Sampler(Sampling(temperature=1.0, seed=seed), [], vocab, follower)
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    while not tokens or tokens[-1] not in bench.family.stop_tokens:
        assert len(tokens) < 3000
        tokens.append(sampler.draw(torch.randn(vocab, generator=generator)))
    return str(bench.prompt.tokenizer.decode(tokens[:-1], skip_special_tokens=False))


def check_arguments(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name == "click":
        assert set(value) == {"x", "how"} and 0 <= value["x"] <= 99 and value["how"] in ("left", "right")
    elif name == "say":
        assert list(value) == ["text"] and len(value["text"]) <= 8
    else:
        assert value == {}


@pytest.mark.parametrize("seed", range(5))
def test_noise_that_must_call_calls_as_declared(bench: Bench, constraints: Constraints, seed: int) -> None:
    text = noise(bench, constraints.follow_calls(HERMES, tools("required"), None), seed)
    found, outlet = read(split(text, seed))
    assert found and outlet.calls == len(found)
    for name, arguments in found:
        check_arguments(name, arguments)


def test_only_the_tools_that_may_be_called_are(bench: Bench, constraints: Constraints) -> None:
    for seed in range(4):
        follower = constraints.follow_calls(HERMES, tools("required", ("say",), parallel=False), None)
        ((name, arguments),), _ = read([noise(bench, follower, seed)])
        assert name == "say"
        check_arguments(name, arguments)


def test_a_form_and_calls_together(bench: Bench, constraints: Constraints) -> None:
    form = Constraint("json_schema", '{"enum": [{"a": 1}, {"b": 2}]}')
    kinds = set()
    for seed in range(12):
        found, outlet = read([noise(bench, constraints.follow_calls(HERMES, tools(), form), seed)])
        kinds.add(bool(outlet.calls))
        if not outlet.calls:
            assert json.loads(found[0]) in ({"a": 1}, {"b": 2})
    assert kinds == {True, False}
    text = noise(bench, constraints.follow_calls(HERMES, tools("none"), form), 0)
    assert json.loads(text) in ({"a": 1}, {"b": 2})


@pytest.mark.parametrize(
    ("use", "text", "allowed"),
    [
        ("auto", "hello", True),
        ("auto", 'x\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>', True),
        ("auto", '<tool_call>\n{"name": "fly', False),
        ("auto", "<tool_call> is a tag", False),
        ("auto", '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>.', False),
        ("none", "hello <tool_call", True),
        ("none", "hello <tool_call>", False),
        ("required", "hello", False),
    ],
)
def test_what_an_answer_may_say(
    bench: Bench, constraints: Constraints, use: ToolUse, text: str, allowed: bool
) -> None:
    matcher = constraints.follow_calls(HERMES, tools(use), None)._matcher
    ids = bench.prompt.tokenizer.encode(text, add_special_tokens=False).ids
    assert (matcher.try_consume_tokens(ids) == len(ids)) is allowed


def test_tags_that_are_tokens_of_their_own_are_read_alike(bench: Bench) -> None:
    """As in the vocabularies of the Qwen family. What else such tokens say may stand in a text."""
    rust = Tokenizer.from_str(bench.prompt.tokenizer.to_str())
    names = [*HERMES.tags, "<think>"]
    rust.add_tokens([AddedToken(name, special=False, normalized=False) for name in names])
    marker, close, think = (rust.token_to_id(name) for name in names)
    own = Constraints(rust, think + 1, bench.family.stop_tokens)
    call = HERMES.written("stop", "{}")
    for use, text, taken in (
        ("required", call, True),
        ("auto", f"<think>x<think> y\n{call}\n{call}", True),
        ("auto", f"a {MARKER}b", False),
        ("none", "<think>x", True),
        ("none", f"x{MARKER}", False),
    ):
        ids = rust.encode(text, add_special_tokens=False).ids
        matcher = own.follow_calls(HERMES, tools(use), None)._matcher  # type: ignore[arg-type]
        assert (matcher.try_consume_tokens(ids) == len(ids)) is taken, text
    # A vocabulary with a token for something else only.
    other = Tokenizer.from_str(bench.prompt.tokenizer.to_str())
    other.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    ids = other.encode(f"<think>x<think> y\n{call}", add_special_tokens=False).ids
    matcher = (
        Constraints(other, marker + 1, bench.family.stop_tokens).follow_calls(HERMES, tools(), None)._matcher
    )
    assert matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    assert {marker, close} <= set(rust.encode(call, add_special_tokens=False).ids)


def test_the_tool_at_fault_is_named(constraints: Constraints) -> None:
    bad = Tool("fly", "{}", '{"type": "object", "properties": {"to": {"type": "strng"}}}')
    given_tools = Tools((*tools().known, bad), "auto", ("fly", "say"))
    with pytest.raises(InvalidConstraint, match=r"tool 'fly': properties\.to: Invalid type"):
        constraints.follow_calls(HERMES, given_tools, None)
    with pytest.raises(InvalidConstraint, match="JSON only"):
        constraints.follow_calls(HERMES, tools(), Constraint("regex", "a"))


def test_as_many_tools_as_are_allowed_can_be_followed(bench: Bench, constraints: Constraints) -> None:
    known = tuple(
        Tool(f"tool_{i}", "{}", json.dumps({**SCHEMAS["click"], "title": f"T{i}"})) for i in range(128)
    )
    follower = constraints.follow_calls(
        HERMES, Tools(known, "required", tuple(tool.name for tool in known)), None
    )
    found, _ = read([noise(bench, follower, 1)])
    check_arguments("click", found[0][1])


@pytest.mark.parametrize("text", ['"} %json {"', "\n start: x\n", "</tool_call>", "\\", '"'])
def test_a_schema_cannot_write_into_the_grammar(bench: Bench, constraints: Constraints, text: str) -> None:
    schema = {"type": "object", "properties": {text: {"const": text}}, "required": [text]}
    tool = Tool("odd", "{}", json.dumps({**schema, "additionalProperties": False, "description": text}))
    follower = constraints.follow_calls(HERMES, Tools((tool,), "required", ("odd",), False), None)
    ((_, arguments),), _ = read([noise(bench, follower, 2)])
    assert json.loads(arguments) == {text: text}


def test_pieces_say_which_call_they_are_of() -> None:
    pieces = HERMES.reader().add(written(("stop", {}), ("stop", {})))
    assert [piece.call for piece in pieces if isinstance(piece, CallPiece)] == [0, 0, 1, 1]
