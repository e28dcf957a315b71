"""The route of a dialect: a body in, an answer or its events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.reports import Tokenized
from service.chat.call import Call, served_name
from service.chat.dialect import Dialect, Frame
from service.chat.generation import Generation
from service.chat.image_list import ImageList
from service.chat.turns import Conversation
from service.context import Services
from service.errors import error_kind
from service.http.body import receive_body
from service.http.disconnect import ClientGone, run_until_disconnect
from service.http.event_stream import EventStream
from service.http.wire import WireModel
from service.observability.recording import RequestRecord
from service.observability.tracing import request_span

Body = TypeVar("Body", bound=WireModel)


class Endpoint(Generic[Body]):
    """Everything that can be refused is refused before the first byte: validation, images, and the engine's
    own check that the prompt fits. After that a failure is an event in the stream."""

    def __init__(self, services: Services, body: type[Body], dialect: Dialect[Body]) -> None:
        self._services, self._body, self._dialect = services, body, dialect

    async def answer(self, request: Request) -> Response:
        """Answer a conversation about images, as one JSON body or (`stream`) as server-sent events."""
        try:
            return await self._answer(request)
        except ClientGone:
            return Response(status_code=error_kind("aborted").status)  # read by the access log only

    async def count(self, request: Request, write: Callable[[str, Tokenized], dict[str, Any]]) -> Response:
        """Say how many tokens the prompt takes. Nothing is queued, and nothing of it is a request in the metrics.
        `write` has the name of the model and what was counted."""
        receive, last_orders = request.receive, self._services.last_orders
        try:
            async with AsyncExitStack() as stack:
                span = stack.enter_context(request_span(request.headers, request.state.request_id))
                record = RequestRecord(
                    self._services.metrics, span, request.state.request_id, request.state.tenant
                )
                async with self._received(request, stack, record) as (call, frame, conversation):
                    counted = await run_until_disconnect(
                        receive, call.count(conversation, stack), last_orders
                    )
                return JSONResponse(write(frame.model, counted))
        except ClientGone:
            return Response(status_code=error_kind("aborted").status)

    async def _answer(self, request: Request) -> Response:
        last_orders = self._services.last_orders
        async with AsyncExitStack() as stack:
            call, frame, generation = await self._begin(request, stack)
            if not call.stream:
                return await run_until_disconnect(request.receive, call.complete(generation), last_orders)
            return EventStream(
                call.chunks(generation),
                stack.pop_all(),
                call.stream_headers(),
                self._services.settings.ping_interval,
                last_orders,
                frame,
            )

    async def _begin(self, request: Request, stack: AsyncExitStack) -> tuple[Call, Frame, Generation]:
        # A frame of its own: the body with its images in base64 is not kept while the answer is generated.
        services, tenant, request_id = self._services, request.state.tenant, request.state.request_id
        span = stack.enter_context(request_span(request.headers, request_id))
        record = stack.enter_context(RequestRecord(services.metrics, span, request_id, tenant))
        async with self._received(request, stack, record) as (call, frame, conversation):
            beginning = call.begin(conversation, stack)
            return call, frame, await run_until_disconnect(request.receive, beginning, services.last_orders)

    @asynccontextmanager
    async def _received(
        self, request: Request, stack: AsyncExitStack, record: RequestRecord
    ) -> AsyncGenerator[tuple[Call, Frame, Conversation], None]:
        """The body, understood and admitted; it counts for the tenant until the end of the context."""
        services, tenant = self._services, request.state.tenant
        deadline = asyncio.get_running_loop().time() + services.settings.request_timeout
        services.admission.arrive(tenant)
        with services.admission.body(tenant) as share:
            body = await receive_body(request, self._body, services.body_limits, share)
            stack.enter_context(services.admission.admit(tenant))
            options = self._dialect.options(body)
            model = served_name(options.model, services.model_names)
            record.asked(model, options.sampling, options.answers)
            frame = self._dialect.frame(body, model)
            call = Call(services, record, options, frame, tenant, deadline)
            images = ImageList(partial(services.files.find, tenant), services.settings.max_images)
            yield call, frame, self._dialect.conversation(body, images)
