"""Answers that must have a form, asked for with the stock client over real HTTP: valid whatever the model would say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

from demo.random_model import SHIPPED
from tests.e2e.live import Live

MESSAGES: Any = [{"role": "user", "content": "Who is it?"}]


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=120)
    kind: Literal["cat", "dog"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with (
        Live(tmp_path_factory.mktemp("forms"), SHIPPED) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: OpenAI, **form: Any) -> str:
    done = client.chat.completions.create(model="page-reader", messages=MESSAGES, max_tokens=200, **form)
    assert done.choices[0].finish_reason == "stop"
    return done.choices[0].message.content or ""


def test_the_stock_client_parses_an_answer_into_a_model(client: OpenAI) -> None:
    done = client.chat.completions.parse(
        model="page-reader", messages=MESSAGES, max_tokens=200, response_format=Person
    )
    person = done.choices[0].message.parsed
    assert isinstance(person, Person)


def test_json_mode_begins_an_object_and_nothing_else(client: OpenAI) -> None:
    """The shipped model reads pages; left to itself it does not come to an end of one."""
    done = client.chat.completions.create(
        model="page-reader", messages=MESSAGES, max_tokens=8, response_format={"type": "json_object"}
    )
    text = done.choices[0].message.content or ""
    assert text == "{}" or text.startswith('{"')


def test_a_streamed_answer_keeps_to_its_schema(client: OpenAI) -> None:
    schema = {**Person.model_json_schema(), "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    chunks = client.chat.completions.create(
        model="page-reader", messages=MESSAGES, max_tokens=200, response_format=form, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    Person.model_validate_json(text)


def test_regular_expressions_and_choices(client: OpenAI) -> None:
    regex = ask(client, extra_body={"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}})
    assert re.fullmatch("[0-9]{4}-[0-9]{2}", regex)
    assert ask(client, extra_body={"structured_outputs": {"choice": ["red", "green"]}}) in ("red", "green")


def test_a_schema_that_cannot_be_followed_is_a_400_that_names_the_place(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "strng"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(BadRequestError) as refused:
        ask(client, response_format=form)
    assert refused.value.code == "invalid_constraint"
    assert "properties.a: Invalid type" in refused.value.message
