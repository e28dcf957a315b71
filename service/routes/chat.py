"""`POST /v1/chat`, and the same at `/v1/chat/completions` for stock OpenAI clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.messages import CacheOptions, Finished, GenerateRequest, Sampling, TextDelta
from service.answer import AnswerFrame, server_timing, x_cache
from service.context import Services
from service.conversation import read_conversation
from service.disconnect import ClientGone, run_until_disconnect
from service.errors import RequestError, ServiceError, UnavailableError, error_body, error_kind
from service.event_stream import DONE, PING, EventStream, event
from service.generation import Generation
from service.openapi import CHAT_OPERATION
from service.recording import RequestRecord
from service.schemas import ChatRequest
from service.tenancy import namespace
from service.validation import read_body


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
            response_model=None,
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
            return await self._answer(request, request.state.request_id, request.state.tenant)
        except ClientGone:
            return Response(status_code=error_kind("aborted").status)  # read by the access log only

    async def _answer(self, request: Request, request_id: str, tenant: str) -> Response:
        services = self._services
        async with AsyncExitStack() as stack:
            record = stack.enter_context(RequestRecord(services.metrics, request_id, tenant))
            stack.enter_context(services.admission.admit(tenant))
            chat = await read_body(request, ChatRequest, services.settings.max_body_bytes)
            call = _Call(services, chat, record, tenant)
            generation = await run_until_disconnect(request.receive, call.begin(stack))
            if not chat.stream:
                return await run_until_disconnect(request.receive, call.complete(generation))
            return EventStream(call.chunks(generation), stack.pop_all(), call.stream_headers())


class _Call:
    """One request on its way from wire model to answer. Making one validates what needs no waiting."""

    def __init__(self, services: Services, chat: ChatRequest, record: RequestRecord, tenant: str) -> None:
        self._services = services
        self._chat = chat
        self._record = record
        self._tenant = namespace(tenant, chat.salt)
        self._deadline = asyncio.get_running_loop().time() + services.settings.request_timeout
        self._conversation = read_conversation(chat, services.settings.max_images)
        self._cache = _cache_options(chat, services.client.info.policies)
        model = _model_name(chat.model, services.model_names)
        self._frame = AnswerFrame(f"chatcmpl-{uuid.uuid4().hex}", model, int(time.time()))

    async def begin(self, stack: AsyncExitStack) -> Generation:
        """Load the images and have the engine accept the prompt. `stack` gets what must be closed."""
        try:
            async with asyncio.timeout_at(self._deadline):
                images = await self._services.images.load(self._conversation.images)
        except TimeoutError:
            raise UnavailableError(
                "request_timeout", "The images took longer than this service allows."
            ) from None
        self._record.images_loaded(len(images))
        request = GenerateRequest(
            id=self._frame.id,
            tenant=self._tenant,
            messages=self._conversation.messages,
            images=images,
            sampling=_sampling(self._chat),
            cache=self._cache,
        )
        generation = Generation(self._services.client, request, self._deadline)
        await stack.enter_async_context(generation)
        await generation.accepted()
        return generation

    async def complete(self, generation: Generation) -> JSONResponse:
        """The whole answer at once."""
        text: list[str] = []
        async with aclosing(generation.output(self._services.settings.ping_interval)) as output:
            async for piece in output:
                if isinstance(piece, TextDelta):
                    self._record.text()
                    text.append(piece.text)
                elif isinstance(piece, Finished):
                    end = piece
        self._record.finished(end)
        timing = {"queue": end.timings.queue, "ttft": end.timings.first_token, "total": end.timings.total}
        headers = {
            "x-cache": x_cache(end.report.images),
            "server-timing": server_timing({"images": self._record.images_seconds, **timing}),
        }
        return JSONResponse(self._frame.completion("".join(text), end), headers=headers)

    async def chunks(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; a failure on the way is one error event."""
        try:
            yield self._event(self._frame.opening())
            async with aclosing(generation.output(self._services.settings.ping_interval)) as output:
                async for piece in output:
                    for chunk in self._pieces(piece):
                        yield chunk
        except ServiceError as error:
            self._record.failed(error.code)
            yield event(error_body(error.code, error.message))
        yield DONE

    def _pieces(self, piece: TextDelta | Finished | None) -> Iterator[bytes]:
        if piece is None:
            yield PING
        elif isinstance(piece, TextDelta):
            self._record.text()
            yield self._event(self._frame.delta(piece.text))
        else:
            self._record.finished(piece)
            yield self._event(self._frame.closing(piece))
            if self._wants_usage:
                yield event(self._frame.usage(piece.usage))

    def _event(self, chunk: dict[str, Any]) -> bytes:
        # With a usage chunk to come, OpenAI's other chunks say that they have none.
        return event({**chunk, "usage": None} if self._wants_usage else chunk)

    @property
    def _wants_usage(self) -> bool:
        options = self._chat.stream_options
        return options is not None and bool(options.include_usage)

    def stream_headers(self) -> dict[str, str]:
        """What is known before the first token: whether images hit is not, except that they cannot."""
        headers = {"server-timing": server_timing({"images": self._record.images_seconds})}
        if not self._conversation.images:
            headers["x-cache"] = "none"
        elif self._cache.mode == "bypass":
            headers["x-cache"] = "bypass"
        return headers


def _sampling(chat: ChatRequest) -> Sampling:
    stop = (chat.stop,) if isinstance(chat.stop, str) else tuple(chat.stop or ())
    return Sampling(
        max_tokens=chat.token_limit,
        temperature=chat.temperature or 0.0,
        top_p=1.0 if chat.top_p is None else chat.top_p,
        seed=chat.seed,
        stop=stop,
    )


def _cache_options(chat: ChatRequest, policies: Sequence[str]) -> CacheOptions:
    asked = chat.cache
    if asked is None:
        return CacheOptions()
    if asked.policy is not None and asked.policy not in policies:
        message = f"There is no refresh policy of that name; choose from {', '.join(policies)}."
        raise RequestError("unknown_policy", message, param="cache.policy")
    return CacheOptions(asked.mode or "auto", asked.policy, asked.refresh_ratio, dict(asked.options or {}))


def _model_name(asked: str | None, names: Sequence[str]) -> str:
    if asked is not None and asked not in names:
        raise RequestError("model_not_found", f"This service runs '{names[0]}' only.", param="model")
    return names[0]
