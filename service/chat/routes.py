"""`POST /v1/chat`, and the same at `/v1/chat/completions` for stock OpenAI clients."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.chat.answer_schemas import CompletionBody
from service.chat.call import Call
from service.chat.generation import Generation
from service.chat.operation import CHAT_OPERATION
from service.chat.schemas import ChatRequest
from service.context import Services
from service.errors import error_kind
from service.http.body import receive_body
from service.http.disconnect import ClientGone, run_until_disconnect
from service.http.event_stream import EventStream
from service.observability.recording import RequestRecord
from service.observability.tracing import request_span


def chat_router(services: Services) -> APIRouter:
    """The chat routes over `services`."""
    endpoint = ChatEndpoint(services)
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


class ChatEndpoint:
    """Everything that can be refused is refused before the first byte: validation, images, and the engine's
    own check that the prompt fits. After that a failure is an event in the stream."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, request: Request) -> Response:
        """Answer a conversation about images, as one JSON body or (`stream`) as server-sent events."""
        try:
            return await self._answer(request)
        except ClientGone:
            return Response(status_code=error_kind("aborted").status)  # read by the access log only

    async def _answer(self, request: Request) -> Response:
        last_orders = self._services.last_orders
        async with AsyncExitStack() as stack:
            call, generation = await self._begin(request, stack)
            if not call.stream:
                return await run_until_disconnect(request.receive, call.complete(generation), last_orders)
            interval = self._services.settings.ping_interval
            headers = call.stream_headers()
            return EventStream(call.chunks(generation), stack.pop_all(), headers, interval, last_orders)

    async def _begin(self, request: Request, stack: AsyncExitStack) -> tuple[Call, Generation]:
        # A frame of its own: the body with its images in base64 is not kept while the answer is generated.
        services, tenant, request_id = self._services, request.state.tenant, request.state.request_id
        deadline = asyncio.get_running_loop().time() + services.settings.request_timeout
        span = stack.enter_context(request_span(request.headers, request_id))
        record = stack.enter_context(RequestRecord(services.metrics, span, request_id, tenant))
        services.admission.arrive(tenant)
        with services.admission.body(tenant) as share:
            chat = await receive_body(request, ChatRequest, services.body_limits, share)
            stack.enter_context(services.admission.admit(tenant))
            call = Call(services, record, chat, tenant, deadline)
            beginning = call.begin(chat, stack)
            return call, await run_until_disconnect(request.receive, beginning, services.last_orders)
