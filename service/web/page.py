"""The web page at `/` and the files below `/page/`: nothing from elsewhere, held to that by its content policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from service.errors import RequestError

FILES_PREFIX: Final = "/page/"
_FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# Only the page's own scripts and styles run, only this service is talked to; pictures may be from anywhere, since they
# are what the user typed.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src http: https: data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Something to try on the page: paths or URLs of images, and a question about them."""

    title: str
    images: tuple[str, ...]
    question: str


def page_router(samples: Sequence[Sample] = ()) -> APIRouter:
    """`GET /`, the files it is made of, and what it offers to try. The files are read once, so that no name that is
    asked for ever reaches the file system."""
    files = {
        path.relative_to(_FOLDER).as_posix(): (path.read_bytes(), _KINDS[path.suffix])
        for path in _FOLDER.rglob("*")
        if path.suffix in _KINDS
    }
    router = APIRouter(include_in_schema=False)

    def file(name: str) -> Response:
        if name not in files:
            raise RequestError("not_found", "The page has no such file.")
        content, kind = files[name]
        return Response(content, media_type=kind, headers=_HEADERS)

    @router.get("/")
    async def page() -> Response:
        return file("index.html")

    @router.get(FILES_PREFIX + "{name:path}")
    async def part(name: str) -> Response:
        return file(name)

    @router.get("/samples.json")
    async def offered() -> JSONResponse:
        return JSONResponse([asdict(sample) for sample in samples])

    return router
