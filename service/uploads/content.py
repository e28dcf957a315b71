"""An upload handed back, piece by piece from the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.files.library import FileLibrary
from service.files.record import FileRecord

# Somebody's file on our address: nothing that a browser may show or run as ours.
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cache-control": "private, no-store",
}


class ContentAnswer(Response):
    """The file is open until the answer has been sent, or its client has left."""

    media_type = "application/octet-stream"

    def __init__(
        self, record: FileRecord, piece: Callable[[int], Awaitable[bytes]], opened: AsyncExitStack
    ) -> None:
        name = quote(record.filename, safe="")
        length = {"content-length": str(record.bytes)}
        disposition = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
        super().__init__(headers={**_HEADERS, **disposition, **length})
        self._bytes = record.bytes
        self._piece = piece
        self._opened = opened

    @classmethod
    async def of(cls, files: FileLibrary, record: FileRecord) -> ContentAnswer:
        """The answer for `record`, whose content was checked. Raises `ServiceError`."""
        async with AsyncExitStack() as opened:
            piece = await opened.enter_async_context(files.opened(record))
            return cls(record, piece, opened.pop_all())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            place = 0
            while place < self._bytes:
                piece = await self._piece(place)
                place += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": place < self._bytes})
