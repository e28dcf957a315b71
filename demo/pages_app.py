"""The demo's pages as true URLs: `GET /demo/pages/{code}.png`. Mounted by the service in demo mode. Torch-free.

A page's code is its whole content (`demo.pages.encode`), so the same URL is the same picture for ever and there is
nothing to store. `edge` enlarges it, for models that read larger pictures than the one that ships.
"""

from __future__ import annotations

import io
from typing import Annotated

from fastapi import APIRouter, Query
from PIL import Image
from starlette.responses import JSONResponse, Response

from demo.pages import PAGE_PX, Page, decode, to_image

LARGEST = 2048
CACHE = {"cache-control": "public, max-age=31536000, immutable"}

router = APIRouter(prefix="/demo/pages", tags=["demo"])


@router.get("/{code}.png", response_class=Response, responses={200: {"content": {"image/png": {}}}, 404: {}})
def page(code: str, edge: Annotated[int, Query(ge=PAGE_PX, le=LARGEST)] = PAGE_PX) -> Response:
    """The page of that code as a PNG of `edge` x `edge` pixels; 404 where the code is none."""
    try:
        drawn = decode(code)
    except ValueError:
        return JSONResponse({"error": {"message": "There is no such page.", "code": "not_found"}}, 404)
    # FastAPI runs this in a thread: drawing does not hold up the event loop.
    return Response(draw(drawn, edge), media_type="image/png", headers=CACHE)


def draw(page: Page, edge: int) -> bytes:
    """The page as a PNG file of `edge` x `edge` pixels; enlarged pixels keep hard borders."""
    picture = to_image(page)
    if edge != PAGE_PX:
        picture = picture.resize((edge, edge), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()
