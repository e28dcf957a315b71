"""What answers of `/v1/responses` look like, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.chat.answer_schemas import ReportBody

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputTextBody(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[dict[str, Any]]


class MessageItemBody(BaseModel):
    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputTextBody]


class CallItemBody(BaseModel):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str


class InputDetailsBody(BaseModel):
    cached_tokens: int
    cache_write_tokens: int
    image_tokens: int
    text_tokens: int


class ResponseUsageBody(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetailsBody
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseBody(BaseModel):
    """OpenAI's response, and the report beside it. Nothing of it is kept: `store` is false."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    model: str
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    output: list[MessageItemBody | CallItemBody]
    instructions: None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    store: Literal[False]
    background: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsageBody | None
    kv_report: ReportBody
