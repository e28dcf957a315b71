"""The demo's pages as true URLs: `GET /demo/pages/{code}.png`, and several as a PDF, `GET /demo/pages/{codes}.pdf`.
Mounted by the service in demo mode. Torch-free.

A page's code is its whole content (`demo.pages.encode`), so the same URL is the same picture for ever and there is
nothing to store. `edge` enlarges it, for models that read larger pictures than the one that ships.
"""

from __future__ import annotations

import io
from typing import Annotated

from fastapi import APIRouter, Query
from PIL import Image
from starlette.responses import JSONResponse, Response

from demo.documents import pdf_of
from demo.pages import PAGE_PX, Page, decode, to_image

LARGEST = 2048
MOST = 32
"""Pages of one PDF."""
CACHE = {"cache-control": "public, max-age=31536000, immutable"}

router = APIRouter(prefix="/demo/pages", tags=["demo"])


@router.get("/{code}.png", response_class=Response, responses={200: {"content": {"image/png": {}}}, 404: {}})
def page(code: str, edge: Annotated[int, Query(ge=PAGE_PX, le=LARGEST)] = PAGE_PX) -> Response:
    """The page of that code as a PNG of `edge` x `edge` pixels; 404 where the code is none."""
    try:
        drawn = decode(code)
    except ValueError:
        return _nothing()
    # FastAPI runs this in a thread: drawing does not hold up the event loop.
    return Response(draw(drawn, edge), media_type="image/png", headers=CACHE)


@router.get(
    "/{codes}.pdf", response_class=Response, responses={200: {"content": {"application/pdf": {}}}, 404: {}}
)
def document(codes: str) -> Response:
    """The pages of these codes, separated by commas, as a PDF; 404 where one is none, or there are too many."""
    named = codes.split(",", MOST)
    try:
        drawn = [to_image(decode(code)) for code in named]
    except ValueError:
        return _nothing()
    if len(drawn) > MOST:
        return _nothing()
    return Response(pdf_of(drawn), media_type="application/pdf", headers=CACHE)


def _nothing() -> JSONResponse:
    return JSONResponse({"error": {"message": "There is no such page.", "code": "not_found"}}, 404)


def draw(page: Page, edge: int) -> bytes:
    """The page as a PNG file of `edge` x `edge` pixels; enlarged pixels keep hard borders."""
    picture = to_image(page)
    if edge != PAGE_PX:
        picture = picture.resize((edge, edge), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()
