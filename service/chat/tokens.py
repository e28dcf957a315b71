"""`POST /v1/tokenize`: what a chat request would be as tokens. `POST /v1/detokenize`: tokens as text."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.reports import Tokenized
from service.chat.call import served_name
from service.chat.endpoint import Endpoint
from service.chat.routes import ChatDialect
from service.chat.schemas import ChatRequest
from service.context import Services
from service.errors import UnavailableError
from service.http.body import receive_body
from service.http.openapi import error_answers, reads
from service.http.wire import Label, Whole, WireModel

MOST_TOKENS: Final = 262_144
_REFUSALS: Final = error_answers(404, 429, 500, 503, 504)


class DetokenizeRequest(WireModel):
    model: Label | None = None
    tokens: Annotated[
        list[Annotated[Whole, Field(ge=0, lt=2**31)]], Field(max_length=MOST_TOKENS, fail_fast=True)
    ]


class TokenizeBody(BaseModel):
    """`tokens` has the image token where a visual token stands; `image_tokens` are those of each image in order."""

    model: str
    count: int
    max_model_len: int
    tokens: list[int]
    image_tokens: list[int]


class DetokenizeBody(BaseModel):
    prompt: str


TOKEN_BODIES: Final = (DetokenizeRequest,)


def tokens_router(services: Services) -> APIRouter:
    endpoint = Endpoint(services, ChatRequest, ChatDialect())
    router = APIRouter(tags=["tokens"])

    @router.post("/v1/tokenize", response_model=TokenizeBody, openapi_extra=_operation(ChatRequest))
    async def tokenize(request: Request) -> Response:
        """The tokens of the prompt that the same body would have at `/v1/chat`, its images among them."""
        return await endpoint.count(request, partial(_counted, services.client.info.max_context))

    @router.post("/v1/detokenize", response_model=DetokenizeBody, openapi_extra=_operation(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text that token ids stand for, special tokens as they are written."""
        tenant = request.state.tenant
        services.admission.arrive(tenant)
        with services.admission.body(tenant) as share, services.admission.admit(tenant):
            body = await receive_body(request, DetokenizeRequest, services.body_limits, share)
            served_name(body.model, services.model_names)
            return JSONResponse({"prompt": await _text(services, body.tokens)})

    return router


def _operation(model: type[WireModel]) -> dict[str, Any]:
    body = reads(model)
    return {**body, "responses": {**body["responses"], **_REFUSALS}}


def _counted(max_context: int, model: str, tokenized: Tokenized) -> dict[str, Any]:
    return {
        "model": model,
        "count": len(tokenized.ids),
        "max_model_len": max_context,
        "tokens": list(tokenized.ids),
        "image_tokens": list(tokenized.image_tokens),
    }


async def _text(services: Services, tokens: list[int]) -> str:
    try:
        async with asyncio.timeout(services.settings.request_timeout):
            return await services.client.tokens.detokenize(tokens)
    except TimeoutError:
        message = "The request took longer than this service allows."
        raise UnavailableError("request_timeout", message) from None
