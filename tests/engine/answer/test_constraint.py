"""Answers that must have a form: what is drawn keeps to it whatever the model would say; a refusal says where."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest
import torch

from engine.answer.constraint import Constraints, Follower
from engine.answer.sampling import Sampler
from engine.errors import InvalidConstraint
from engine.messages import Constraint, Sampling
from tests.engine.conftest import Bench

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


@pytest.fixture(scope="module")
def constraints(bench: Bench) -> Constraints:
    return Constraints(bench.prompt.tokenizer, bench.family.shape.vocab, bench.family.stop_tokens)


def drawn(bench: Bench, constraints: Constraints, constraint: Constraint, seed: int, **changes: Any) -> str:
    """An answer drawn from logits of noise, to its end."""
    sampling = Sampling(temperature=1.0, seed=seed, constraint=constraint, **changes)
    vocab = bench.family.shape.vocab
    sampler = Sampler(sampling, [], vocab, constraints.follow(constraint))
    noise = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    while not tokens or tokens[-1] not in bench.family.stop_tokens:
        assert len(tokens) < 2000
        tokens.append(sampler.draw(torch.randn(vocab, generator=noise)))
    return str(bench.prompt.tokenizer.decode(tokens[:-1], skip_special_tokens=False))


@pytest.mark.parametrize("seed", range(8))
def test_noise_that_must_follow_a_schema_is_valid_json_of_it(
    bench: Bench, constraints: Constraints, seed: int
) -> None:
    answer = json.loads(drawn(bench, constraints, schema(PERSON), seed))
    assert set(answer) == {"name", "age", "tags"}
    assert isinstance(answer["name"], str) and 0 <= answer["age"] <= 120
    assert set(answer["tags"]) <= {"a", "b"} and len(answer["tags"]) <= 3


@pytest.mark.parametrize("seed", range(4))
def test_json_has_no_free_white_space(bench: Bench, constraints: Constraints, seed: int) -> None:
    """A weak model might write nothing else for ever."""
    numbers = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 4}
    form = {"type": "object", "properties": {"n": numbers}, "required": ["n"], "additionalProperties": False}
    answer = drawn(bench, constraints, schema(form), seed)
    assert answer == json.dumps(json.loads(answer))


@pytest.mark.parametrize("seed", range(4))
def test_regular_expressions_and_choices_are_kept_to(
    bench: Bench, constraints: Constraints, seed: int
) -> None:
    pattern = r"[A-F]{2}-\d{3}"
    assert re.fullmatch(pattern, drawn(bench, constraints, Constraint("regex", pattern), seed))
    choices = ["yes", 'no "quotes"', "né\n"]
    assert drawn(bench, constraints, Constraint("choice", json.dumps(choices)), seed) in choices


def test_the_form_wins_over_biases_and_penalties(bench: Bench, constraints: Constraints) -> None:
    pushed = tuple((token, 100.0) for token in range(5, 40))
    answer = drawn(
        bench,
        constraints,
        Constraint("choice", '["two", "three"]'),
        1,
        logit_bias=pushed,
        presence_penalty=2.0,
    )
    assert answer in ("two", "three")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"type": "object", "properties": {"a": {"type": "strng"}}}, "properties.a: Invalid type"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"pattern": "(", "type": "string"}}},
            },
            "properties.a.items: ",
        ),
        ({"$ref": "#/$defs/nope"}, "Pointer"),
        ({"type": "object", "properties": {"a": None}}, "properties.a: "),
        ({"anyOf": [{"type": "string"}, {"not": {"type": "string"}}]}, "anyOf[1]: Unimplemented"),
        (
            {
                "$defs": {"name": {"type": "string"}},
                "type": "object",
                "properties": {
                    "names": {"type": "array", "items": {"$ref": "#/$defs/name"}},
                    "b": {"type": "strng"},
                },
            },
            "properties.b: Invalid type",
        ),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_with_the_place(
    constraints: Constraints, value: object, place: str
) -> None:
    with pytest.raises(InvalidConstraint, match="^" + re.escape(place)):
        constraints.follow(schema(value))


def test_the_place_is_looked_for_in_so_many_parts_and_no_more(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part that is tried costs as much as a grammar."""
    properties = {**{f"p{i}": {"type": "string"} for i in range(4)}, "last": {"type": "strng"}}
    faulty = schema({"type": "object", "properties": properties})
    monkeypatch.setattr("engine.answer.constraint.MOST_TRIED", 5)
    with pytest.raises(InvalidConstraint, match=r"^properties\.last: "):
        constraints.follow(faulty)
    monkeypatch.setattr("engine.answer.constraint.MOST_TRIED", 4)
    with pytest.raises(InvalidConstraint, match=r"^Invalid type"):
        constraints.follow(faulty)


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "("),
        Constraint("regex", "(a{1000}){1000}"),
        schema({"enum": [f"value {i}" for i in range(20_000)]}),
    ],
)
def test_what_would_take_too_long_is_refused_before_it_runs(
    constraints: Constraints, constraint: Constraint
) -> None:
    with pytest.raises(InvalidConstraint):
        constraints.follow(constraint)


class Exhausted:
    """In the place of a matcher that came to one of its limits in the middle of an answer."""

    def compute_bitmask(self) -> bytes:
        return b"\xff"

    def is_error(self) -> bool:
        return True


def test_a_form_that_becomes_too_complex_on_the_way_ends_the_answer_with_an_error() -> None:
    with pytest.raises(InvalidConstraint, match="too complex"):
        Follower(cast(Any, Exhausted()), 8).allow(torch.zeros(8))
