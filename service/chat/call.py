"""One request on its way from a conversation to an answer, whatever dialect it came in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

from engine.messages import Accepted, Ended, Finished, GenerateRequest
from engine.reports import Tokenized
from service.chat.answer import server_timing, x_cache
from service.chat.dialect import Frame, Options, Written
from service.chat.generation import Generation, Output
from service.chat.turns import Conversation
from service.context import Services
from service.errors import RequestError, ServiceError, UnavailableError
from service.http.tenancy import namespace
from service.http.written_json import WrittenResponse
from service.observability.recording import RequestRecord
from service.observability.tracing import phase_span


class Call:
    """Making one checks what needs no waiting. It keeps the options of the request and none of its
    contents. `deadline` is on the clock of the running loop."""

    def __init__(
        self,
        services: Services,
        record: RequestRecord,
        options: Options,
        frame: Frame,
        tenant: str,
        deadline: float,
    ) -> None:
        _check_policy(options, services.client.info.policies)
        _check_priority(options, services)
        self._services = services
        self._record = record
        self._account = tenant
        self._tenant = namespace(tenant, options.salt)
        self._deadline = deadline
        self._options = options
        self._frame = frame
        self._images = 0
        self._accepted: Accepted
        self.stream = options.stream

    async def begin(self, conversation: Conversation, stack: AsyncExitStack) -> Generation:
        """Load the images and have the engine accept the prompt. `stack` gets what must be closed."""
        request = await self._request(conversation, stack)
        params = [place.param for place in conversation.images]
        generation = Generation(self._services.client, request, self._deadline, params)
        await stack.enter_async_context(generation)
        self._accepted = await generation.accepted()
        return generation

    async def count(self, conversation: Conversation, stack: AsyncExitStack) -> Tokenized:
        """Load the images and have the engine lay the prompt out, and no more."""
        request = await self._request(conversation, stack)
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._services.client.tokens.tokenize(request)
        except TimeoutError:
            message = "The request took longer than this service allows."
            raise UnavailableError("request_timeout", message) from None

    async def _request(self, conversation: Conversation, stack: AsyncExitStack) -> GenerateRequest:
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
        options = self._options
        return GenerateRequest(
            id=self._frame.id,
            tenant=self._tenant,
            messages=conversation.messages,
            images=images,
            pins=conversation.pins,
            sampling=options.sampling,
            cache=options.cache,
            tools=options.tools,
            template=options.template,
            answers=options.answers,
            account=self._account,
            priority=options.priority,
            timeout_seconds=max(0.0, self._deadline - asyncio.get_running_loop().time()),
        )

    async def complete(self, generation: Generation) -> WrittenResponse:
        """The whole answer at once."""
        answers = [Written() for _ in range(self._options.answers)]
        async with aclosing(generation.output()) as output:
            async for piece in output:
                answers[piece.index].add(piece)
                self._note(piece)
                if isinstance(piece, Finished):
                    end = piece
        timing = {"queue": end.timings.queue, "ttft": end.timings.first_token, "total": end.timings.total}
        headers = {
            "x-cache": x_cache(end.report.images),
            "server-timing": server_timing({"images": self._record.images_seconds, **timing}),
        }
        return WrittenResponse(self._frame.whole(answers, end), headers=headers)

    async def chunks(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; a failure on the way is one error event."""
        try:
            for chunk in self._frame.begin(self._accepted):
                yield chunk
            async with aclosing(generation.output()) as output:
                async for piece in output:
                    self._note(piece)
                    for chunk in self._frame.piece(piece):
                        yield chunk
        except ServiceError as error:
            self._record.failed(error.code)
            for chunk in self._frame.fail(error):
                yield chunk

    def _note(self, piece: Output) -> None:
        if isinstance(piece, Finished):
            self._record.finished(piece)
        elif not isinstance(piece, Ended):
            self._record.text()

    def stream_headers(self) -> dict[str, str]:
        """What is known before the first token: whether images hit is not, except that they cannot."""
        headers = {"server-timing": server_timing({"images": self._record.images_seconds})}
        if not self._images:
            headers["x-cache"] = "none"
        elif self._options.cache.mode == "bypass":
            headers["x-cache"] = "bypass"
        return headers


def served_name(asked: str | None, names: Sequence[str]) -> str:
    """The name that is answered with. Raises `RequestError` for a model that is not served."""
    if asked is not None and asked not in names:
        raise RequestError("model_not_found", f"This service runs '{names[0]}' only.", param="model")
    return names[0]


def _check_priority(options: Options, services: Services) -> None:
    """Where callers have keys none of them may push ahead of the others."""
    if options.priority < 0 and services.settings.api_keys:
        message = "A priority below 0 goes ahead of other callers, which this service does not allow."
        raise RequestError("invalid_request", message, param="priority")


def _check_policy(options: Options, policies: Sequence[str]) -> None:
    asked = options.cache.policy
    if asked is not None and asked not in policies:
        message = f"There is no refresh policy of that name; choose from {', '.join(policies)}."
        raise RequestError("unknown_policy", message, param="cache.policy")
