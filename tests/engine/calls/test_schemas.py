"""Schemas that nobody thought of: a call follows them, or they are refused; nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.answer.constraint import Constraints
from engine.answer.sampling import Sampler
from engine.calls.hermes import Hermes
from engine.errors import InvalidConstraint
from engine.messages import Sampling
from engine.tools import Tool, Tools
from tests.engine.calls.test_hermes import read
from tests.engine.conftest import Bench

NAMES = st.text(alphabet='ab"{}\\\n%<é', min_size=1, max_size=4)
ATOMS = st.one_of(
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-50, 50),
        st.integers(0, 99),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 6)),
    st.builds(
        lambda values: {"enum": values},
        st.lists(NAMES | st.integers(-9, 9), min_size=1, max_size=3, unique=True),
    ),
    st.builds(lambda value: {"const": value}, NAMES),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
        st.dictionaries(NAMES, inner, max_size=3),
    )


SCHEMAS = objects(
    st.recursive(
        ATOMS,
        lambda inner: (
            objects(inner)
            | st.builds(
                lambda items, most: {"type": "array", "items": items, "maxItems": most},
                inner,
                st.integers(0, 2),
            )
            | st.builds(lambda either: {"anyOf": either}, st.lists(inner, min_size=1, max_size=2))
        ),
        max_leaves=5,
    )
)
BROKEN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "$ref",
                    "enum",
                    "pattern",
                    "allOf",
                    "x-guidance",
                    "a",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def constraints(bench: Bench) -> Constraints:
    return Constraints(bench.prompt.tokenizer, bench.family.shape.vocab, bench.family.stop_tokens)


@QUICK
@given(SCHEMAS, st.integers(0, 2**32))
def test_calls_follow_whatever_schema(bench: Bench, constraints: Constraints, schema: Any, seed: int) -> None:
    tools = Tools((Tool("f", "{}", json.dumps(schema)),), "required", ("f",), False)
    follower = constraints.follow_calls(Hermes(), tools, None)
    vocab = bench.family.shape.vocab
    sampler = Sampler(Sampling(temperature=1.0, seed=seed), [], vocab, follower)
    noise = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    while not tokens or tokens[-1] not in bench.family.stop_tokens:
        assert len(tokens) < 3000
        tokens.append(sampler.draw(torch.randn(vocab, generator=noise)))
    ((name, arguments),), outlet = read(
        [bench.prompt.tokenizer.decode(tokens[:-1], skip_special_tokens=False)]
    )
    assert (name, outlet.calls) == ("f", 1)
    assert jsonschema_rs.is_valid(schema, json.loads(arguments)), (schema, arguments)


@QUICK
@given(
    st.dictionaries(
        st.sampled_from(["properties", "required", "$defs", "$ref", "anyOf", "x-guidance"]), BROKEN
    )
)
def test_what_is_no_schema_is_refused_or_followed(constraints: Constraints, schema: dict[str, Any]) -> None:
    tools = Tools((Tool("f", "{}", json.dumps(schema)),), "required", ("f",))
    try:
        constraints.follow_calls(Hermes(), tools, None)
    except InvalidConstraint as refused:
        assert "f" in refused.message
