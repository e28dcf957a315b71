"""Wire models of the form that an answer must have, in OpenAI's words and in vLLM's."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from engine.messages import Constraint
from service.http.wire import Label, WireModel, by_type, conflict

MAX_SCHEMA: Final = 128 * 1024
"""Characters of a schema as JSON, and of a regular expression."""
_ANY_OBJECT: Final = '{"type": "object"}'
Choice = Annotated[str, Field(min_length=1, max_length=4096)]


def _not_endless(schema: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise PydanticCustomError("string_too_long", "schema", {"max_length": MAX_SCHEMA})
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_not_endless)]


class FreeText(WireModel):
    type: Literal["text"]


class JsonObject(WireModel):
    type: Literal["json_object"]


class NamedSchema(WireModel):
    """`strict` false is followed as strictly. The field is called `schema` on the wire."""

    model_config = ConfigDict(populate_by_name=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Label | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class JsonSchema(WireModel):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    Annotated[FreeText, Tag("@text")]
    | Annotated[JsonObject, Tag("@json_object")]
    | Annotated[JsonSchema, Tag("@json_schema")],
    by_type(
        {"text": "@text", "json_object": "@json_object", "json_schema": "@json_schema"},
        "an object of type 'text', 'json_object' or 'json_schema'",
    ),
]


class StructuredOutputs(WireModel):
    """One of three: a JSON Schema, a regular expression that the whole answer fits, texts to choose from."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: Annotated[str, Field(min_length=1, max_length=MAX_SCHEMA)] | None = None
    choice: Annotated[list[Choice], Field(min_length=1, max_length=1024, fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if [self.json_, self.regex, self.choice].count(None) != 2:
            raise conflict("structured_outputs", "give one of 'json', 'regex' and 'choice'")
        return self


def constraint_of(
    response_format: FreeText | JsonObject | JsonSchema | None, structured: StructuredOutputs | None
) -> Constraint | None:
    """What the engine is asked to keep to; both at once are refused before."""
    if isinstance(response_format, JsonObject):
        return Constraint("json_schema", _ANY_OBJECT)
    if isinstance(response_format, JsonSchema):
        return Constraint("json_schema", json.dumps(response_format.json_schema.schema_))
    if structured is None:
        return None
    if structured.regex is not None:
        return Constraint("regex", structured.regex)
    if structured.choice is not None:
        return Constraint("choice", json.dumps(structured.choice))
    return Constraint("json_schema", json.dumps(structured.json_))
