"""Answers that must have a form: what is drawn keeps to it whatever the model would say; a refusal says where."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from engine.answer.constraint import Constraints
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
        ({"anyOf": [{"type": "string"}, {"not": {"type": "string"}}]}, "anyOf[1]: Unimplemented"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_with_the_place(
    constraints: Constraints, value: object, place: str
) -> None:
    with pytest.raises(InvalidConstraint, match="^" + re.escape(place)):
        constraints.follow(schema(value))


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
