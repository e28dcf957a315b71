"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.chat.dialect import Options
from service.chat.endpoint import Endpoint
from service.chat.image_list import ImageList
from service.chat.turns import Conversation
from service.context import Services
from service.http.openapi import ANTHROPIC_ERROR, error_answers, reads
from service.http.wire import EXAMPLE_IMAGE
from service.messages.answer_schemas import CountBody, MessageBody
from service.messages.conversation import read_conversation, read_options
from service.messages.frame import MessagesFrame
from service.messages.schemas import CountRequest, MessagesRequest

_IMAGE: Final = {"type": "image", "source": {"type": "base64", "data": EXAMPLE_IMAGE.partition(",")[2]}}
_ASKED: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": [_IMAGE, {"type": "text", "text": "What is the total?"}]}]
}
_EXAMPLES: Final = {
    "streamed": {"summary": "Streamed", "value": {**_ASKED, "max_tokens": 100, "stream": True}}
}


def messages_router(services: Services) -> APIRouter:
    router = APIRouter(tags=["messages"])
    answering = Endpoint(services, MessagesRequest, MessagesDialect())
    counting = Endpoint(services, CountRequest, MessagesDialect())

    async def count_tokens(request: Request) -> Response:
        """The tokens of the prompt that the same body would have at `/v1/messages`, its images among them."""
        return await counting.count(request, lambda _, counted: {"input_tokens": len(counted.ids)})

    router.add_api_route(
        "/v1/messages",
        answering.answer,
        methods=["POST"],
        operation_id="messages",
        response_model=MessageBody,
        openapi_extra=_operation(MessagesRequest, _EXAMPLES, {"content": {"text/event-stream": {}}}),
    )
    router.add_api_route(
        "/v1/messages/count_tokens",
        count_tokens,
        methods=["POST"],
        operation_id="count_tokens",
        response_model=CountBody,
        openapi_extra=_operation(CountRequest, {"image": {"summary": "An image", "value": _ASKED}}, {}),
    )
    return router


class MessagesDialect:
    """`Dialect` of Anthropic's messages."""

    def options(self, body: CountRequest) -> Options:
        return read_options(body)

    def conversation(self, body: CountRequest, images: ImageList) -> Conversation:
        return read_conversation(body, images)

    def frame(self, body: CountRequest, model: str) -> MessagesFrame:
        return MessagesFrame(model)


def _operation(
    body: type[CountRequest], examples: dict[str, Any], answered: dict[str, Any]
) -> dict[str, Any]:
    read = reads(body, examples, ANTHROPIC_ERROR)
    refused = error_answers(404, 429, 500, 503, 504, schema=ANTHROPIC_ERROR)
    return {
        **read,
        "responses": {"200": {"description": "Answered.", **answered}, **read["responses"], **refused},
    }
