"""What a browser is told that asks on behalf of a page from elsewhere, where the operator lists such pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

_METHODS: Final = ("GET", "POST", "DELETE")
_REQUEST_HEADERS: Final = (
    "authorization",
    "content-type",
    "x-api-key",
    "x-request-id",
    "traceparent",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "openai-organization",
    "openai-project",
)
# The SDKs of the clients say in headers of their own which program asks, and how often it has tried.
_STAINLESS: Final = tuple(
    f"x-stainless-{name}"
    for name in (
        "arch",
        "async",
        "custom-poll-interval",
        "helper-method",
        "lang",
        "os",
        "package-version",
        "poll-helper",
        "read-timeout",
        "retry-count",
        "runtime",
        "runtime-version",
        "timeout",
    )
)
_ANSWER_HEADERS: Final = ("x-request-id", "x-cache", "server-timing", "retry-after")
_SECONDS: Final = 600


def add_cors(app: FastAPI, origins: Sequence[str]) -> None:
    """Pages of `origins` may read answers. No cookies: who needs a key sends it in a header."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=_METHODS,
        allow_headers=[*_REQUEST_HEADERS, *_STAINLESS],
        expose_headers=_ANSWER_HEADERS,
        max_age=_SECONDS,
    )
