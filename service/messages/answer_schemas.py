"""What answers of `/v1/messages` look like, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.chat.answer_schemas import ReportBody


class TextBody(BaseModel):
    type: Literal["text"]
    text: str


class ToolUseBody(BaseModel):
    """`partial_json` is there where `max_tokens` cut the arguments off."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    partial_json: str = ""


class InputUsageBody(BaseModel):
    """The first three add up to the tokens of the prompt."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int


class MessageBody(BaseModel):
    """Anthropic's message, and the report beside it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBody | ToolUseBody]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: InputUsageBody
    kv_report: ReportBody


class CountBody(BaseModel):
    input_tokens: int
