"""`POST /v1/chat`, and the same at `/v1/chat/completions` for stock OpenAI clients."""

from __future__ import annotations

from fastapi import APIRouter

from service.chat.answer import ChatFrame
from service.chat.answer_schemas import CompletionBody
from service.chat.conversation import read_conversation
from service.chat.dialect import Options
from service.chat.endpoint import Endpoint
from service.chat.image_list import ImageList
from service.chat.operation import CHAT_OPERATION
from service.chat.options import read_options
from service.chat.schemas import ChatRequest
from service.chat.turns import Conversation
from service.context import Services


def chat_router(services: Services) -> APIRouter:
    """The chat routes over `services`."""
    endpoint = Endpoint(services, ChatRequest, ChatDialect())
    router = APIRouter(tags=["chat"])
    for path, name in (("/v1/chat", "chat"), ("/v1/chat/completions", "chat_completions")):
        router.add_api_route(
            path,
            endpoint.answer,
            methods=["POST"],
            operation_id=name,
            response_model=CompletionBody,
            openapi_extra=CHAT_OPERATION,
        )
    return router


class ChatDialect:
    """`Dialect` of OpenAI's chat completions."""

    def options(self, body: ChatRequest) -> Options:
        return read_options(body)

    def conversation(self, body: ChatRequest, images: ImageList) -> Conversation:
        return read_conversation(body, images)

    def frame(self, body: ChatRequest, model: str) -> ChatFrame:
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return ChatFrame(model, body.n or 1, bool(body.logprobs), usage)
