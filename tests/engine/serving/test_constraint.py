"""Answers that must have a form, from a worker that has others to serve."""

from __future__ import annotations

import json

from engine.messages import Failed, Sampling
from tests.engine.answer.test_constraint import PERSON, schema
from tests.engine.asking import Client, ask


def test_a_constrained_answer_comes_out_of_the_worker_among_others(client: Client) -> None:
    """In one batch with a free one."""
    form = Sampling(max_tokens=400, constraint=schema(PERSON), seed=3, temperature=0.7)
    free = client.start(ask("free"))
    text, end = client.answer(ask("formed", sampling=form))
    assert set(json.loads(text)) == {"name", "age", "tags"}
    assert end.reason == "stop"
    assert free.get(timeout=60) is not None


def test_a_refused_schema_ends_its_request_with_its_code(client: Client) -> None:
    (event,) = client.run(ask("bad", sampling=Sampling(constraint=schema({"type": "strng"}))))
    assert isinstance(event, Failed) and event.code == "invalid_constraint"
