"""The web page at `/`: one file without anything from elsewhere, held to that by its content security
policy."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import HTMLResponse, JSONResponse

_FILE: Final = Path(__file__).parent / "index.html"


@dataclass(frozen=True, slots=True)
class Sample:
    """Something to try on the page: paths or URLs of images, and a question about them."""

    title: str
    images: tuple[str, ...]
    question: str


def page_router(samples: Sequence[Sample] = ()) -> APIRouter:
    """`GET /`, and what it offers to try. The file is read once."""
    text = _FILE.read_text(encoding="utf-8")
    headers = {
        "content-security-policy": _policy(text),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(text, headers=headers)

    @router.get("/samples.json")
    async def offered() -> JSONResponse:
        return JSONResponse([asdict(sample) for sample in samples])

    return router


def _policy(text: str) -> str:
    """Only the page's own script and style run, only this service is talked to; pictures may be from
    anywhere, since they are what the user typed."""
    script, style = (_source_hash(text, tag) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "img-src http: https: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _source_hash(text: str, tag: str) -> str:
    match = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    if match is None:
        raise ValueError(f"the page has no <{tag}>")
    digest = hashlib.sha256(match[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
