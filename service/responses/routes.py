"""`POST /v1/responses`."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter

from service.chat.dialect import Options
from service.chat.endpoint import Endpoint
from service.chat.image_list import ImageList
from service.chat.turns import Conversation
from service.context import Services
from service.http.openapi import error_answers, reads
from service.http.wire import EXAMPLE_IMAGE
from service.responses.answer_schemas import ResponseBody
from service.responses.conversation import read_conversation, read_options
from service.responses.frame import ResponsesFrame
from service.responses.schemas import ResponsesRequest

_EXAMPLES: Final[dict[str, Any]] = {
    "text": {"summary": "A text", "value": {"input": "Who are you?"}},
    "image": {
        "summary": "An image, streamed",
        "value": {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": EXAMPLE_IMAGE},
                        {"type": "input_text", "text": "What is the total?"},
                    ],
                }
            ],
            "stream": True,
        },
    },
}


def responses_router(services: Services) -> APIRouter:
    endpoint = Endpoint(services, ResponsesRequest, ResponsesDialect())
    router = APIRouter(tags=["responses"])
    read = reads(ResponsesRequest, _EXAMPLES)
    answered = {"description": "OpenAI's response with a `kv_report`, or its events."}
    responses = {
        "200": {**answered, "content": {"text/event-stream": {}}},
        **read["responses"],
        **error_answers(404, 429, 500, 503, 504),
    }
    router.add_api_route(
        "/v1/responses",
        endpoint.answer,
        methods=["POST"],
        operation_id="responses",
        response_model=ResponseBody,
        openapi_extra={**read, "responses": responses},
    )
    return router


class ResponsesDialect:
    """`Dialect` of OpenAI's responses."""

    def options(self, body: ResponsesRequest) -> Options:
        return read_options(body)

    def conversation(self, body: ResponsesRequest, images: ImageList) -> Conversation:
        return read_conversation(body, images)

    def frame(self, body: ResponsesRequest, model: str) -> ResponsesFrame:
        return ResponsesFrame(model, _repeated(body))


def _repeated(body: ResponsesRequest) -> dict[str, Any]:
    """The options that an answer repeats, as they were taken. Instructions are not among them: they are contents."""
    asked = body.model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"tools", "tool_choice", "metadata"}
    )
    form = body.text.format if body.text is not None else None
    text = {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)
    return {
        "instructions": None,
        "max_output_tokens": body.max_output_tokens,
        "metadata": asked.get("metadata", {}),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "store": False,
        "background": False,
        "temperature": body.temperature or 0.0,
        "text": {"format": text},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "top_p": body.top_p or 1.0,
        "truncation": "disabled",
    }
