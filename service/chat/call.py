"""One chat request on its way from wire model to answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from starlette.responses import JSONResponse

from engine.messages import (
    CacheOptions,
    Ended,
    Finished,
    GenerateRequest,
    Sampling,
    TextDelta,
)
from service.chat.answer import AnswerFrame, Written, server_timing, x_cache
from service.chat.conversation import read_conversation
from service.chat.form_schemas import constraint_of
from service.chat.generation import Generation
from service.chat.retention import retained, retention_seconds
from service.chat.schemas import ChatRequest
from service.context import Services
from service.errors import RequestError, ServiceError, UnavailableError, error_body
from service.http.event_stream import DONE, event, text_events
from service.http.tenancy import namespace
from service.observability.recording import RequestRecord
from service.observability.tracing import phase_span

_PIN_SECONDS: Final = 1800.0


class Call:
    """Making one checks what needs no waiting. It keeps the options of the request and none of its
    contents. `deadline` is on the clock of the running loop."""

    def __init__(
        self, services: Services, record: RequestRecord, chat: ChatRequest, tenant: str, deadline: float
    ) -> None:
        self._services = services
        self._record = record
        self._account = tenant
        self._tenant = namespace(tenant, chat.salt)
        self._deadline = deadline
        options = _cache_options(chat, services.client.info.policies)
        self._cache = retained(options, retention_seconds(chat.prompt_cache_retention))
        self._sampling = _sampling(chat)
        self._answers = chat.n or 1
        self._priority = _priority(chat, services)
        self._wants_usage = chat.stream_options is not None and bool(chat.stream_options.include_usage)
        self._images = 0
        self._frame = AnswerFrame(
            f"chatcmpl-{uuid.uuid4().hex}", _model_name(chat.model, services.model_names), int(time.time())
        )
        self._text_events = [self._text_event(index) for index in range(self._answers)]
        self.stream = bool(chat.stream)

    async def begin(self, chat: ChatRequest, stack: AsyncExitStack) -> Generation:
        """Load the images and have the engine accept the prompt. `stack` gets what must be closed."""
        conversation = read_conversation(chat, self._services.settings.max_images)
        try:
            with phase_span("images"):
                async with asyncio.timeout_at(self._deadline):
                    loaded = self._services.images.loaded(conversation.images, self._tenant)
                    images = await stack.enter_async_context(loaded)
        except TimeoutError:
            message = "The images took longer than this service allows."
            raise UnavailableError("request_timeout", message) from None
        self._images = len(images)
        self._record.images_loaded(len(images))
        request = GenerateRequest(
            id=self._frame.id,
            tenant=self._tenant,
            messages=conversation.messages,
            images=images,
            sampling=self._sampling,
            cache=self._cache,
            account=self._account,
            answers=self._answers,
            priority=self._priority,
            timeout_seconds=max(0.0, self._deadline - asyncio.get_running_loop().time()),
        )
        params = [place.param for place in conversation.images]
        generation = Generation(self._services.client, request, self._deadline, params)
        await stack.enter_async_context(generation)
        await generation.accepted()
        return generation

    async def complete(self, generation: Generation) -> JSONResponse:
        """The whole answer at once."""
        answers = [Written() for _ in range(self._answers)]
        async with aclosing(generation.output()) as output:
            async for piece in output:
                answers[piece.index].add(piece)
                if isinstance(piece, TextDelta):
                    self._record.text()
                elif isinstance(piece, Finished):
                    end = piece
        self._record.finished(end)
        timing = {"queue": end.timings.queue, "ttft": end.timings.first_token, "total": end.timings.total}
        headers = {
            "x-cache": x_cache(end.report.images),
            "server-timing": server_timing({"images": self._record.images_seconds, **timing}),
        }
        body = self._frame.completion(answers, self._sampling.logprobs is not None, end)
        return JSONResponse(body, headers=headers)

    async def chunks(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; a failure on the way is one error event."""
        try:
            for index in range(self._answers):
                yield self._event(self._frame.opening(index))
            async with aclosing(generation.output()) as output:
                async for piece in output:
                    for chunk in self._pieces(piece):
                        yield chunk
        except ServiceError as error:
            self._record.failed(error.code)
            yield event(error_body(error.code, error.message))
        yield DONE

    def _pieces(self, piece: TextDelta | Ended | Finished) -> Iterator[bytes]:
        if isinstance(piece, TextDelta):
            self._record.text()
            yield self._delta(piece)
            return
        if isinstance(piece, Finished):
            self._record.finished(piece)
        yield self._event(self._frame.closing(piece))
        if isinstance(piece, Finished) and self._wants_usage:
            yield event(self._frame.usage(piece.usage))

    def _delta(self, piece: TextDelta) -> bytes:
        if piece.logprobs:
            return self._event(self._frame.delta(piece.index, piece.text, piece.logprobs))
        return self._text_events[piece.index](piece.text)

    def _text_event(self, index: int) -> Callable[[str], bytes]:
        return text_events(lambda text: self._event(self._frame.delta(index, text)))

    def _event(self, chunk: dict[str, Any]) -> bytes:
        # With a usage chunk to come, OpenAI's other chunks say that they have none.
        return event({**chunk, "usage": None} if self._wants_usage else chunk)

    def stream_headers(self) -> dict[str, str]:
        """What is known before the first token: whether images hit is not, except that they cannot."""
        headers = {"server-timing": server_timing({"images": self._record.images_seconds})}
        if not self._images:
            headers["x-cache"] = "none"
        elif self._cache.mode == "bypass":
            headers["x-cache"] = "bypass"
        return headers


def _priority(chat: ChatRequest, services: Services) -> int:
    """Where callers have keys none of them may push ahead of the others."""
    priority = chat.priority or 0
    if priority < 0 and services.settings.api_keys:
        message = "A priority below 0 goes ahead of other callers, which this service does not allow."
        raise RequestError("invalid_request", message, param="priority")
    return priority


def _sampling(chat: ChatRequest) -> Sampling:
    return Sampling(
        max_tokens=chat.token_limit,
        temperature=chat.temperature or 0.0,
        top_p=chat.top_p or 1.0,
        top_k=max(0, chat.top_k or 0),  # vLLM writes "all tokens" as -1
        min_p=chat.min_p or 0.0,
        repetition_penalty=chat.repetition_penalty or 1.0,
        presence_penalty=chat.presence_penalty or 0.0,
        frequency_penalty=chat.frequency_penalty or 0.0,
        logit_bias=tuple((int(token), value) for token, value in (chat.logit_bias or {}).items()),
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        seed=chat.seed,
        constraint=constraint_of(chat.response_format, chat.structured_outputs),
        stop=(chat.stop,) if isinstance(chat.stop, str) else tuple(chat.stop or ()),
        stop_tokens=tuple(chat.stop_token_ids or ()),
        min_tokens=chat.min_tokens or 0,
        ignore_eos=bool(chat.ignore_eos),
    )


def _cache_options(chat: ChatRequest, policies: Sequence[str]) -> CacheOptions:
    asked, hint = chat.cache, chat.prompt_cache_key
    if asked is None:
        return CacheOptions(hint=hint)
    if asked.policy is not None and asked.policy not in policies:
        message = f"There is no refresh policy of that name; choose from {', '.join(policies)}."
        raise RequestError("unknown_policy", message, param="cache.policy")
    return CacheOptions(
        mode=asked.mode or "auto",
        policy=asked.policy,
        refresh_ratio=asked.refresh_ratio,
        refine=asked.refine,
        options=dict(asked.options or {}),
        chain=asked.chain,
        explain=bool(asked.explain),
        pin_seconds=(asked.ttl or _PIN_SECONDS) if asked.pin else None,
        hint=hint,
    )


def _model_name(asked: str | None, names: Sequence[str]) -> str:
    if asked is not None and asked not in names:
        raise RequestError("model_not_found", f"This service runs '{names[0]}' only.", param="model")
    return names[0]
