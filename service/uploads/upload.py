"""One upload, from the first byte of its form to a file that is kept, and by choice warmed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect, Request

from service.chat.warming import warmed
from service.context import Services
from service.errors import ImageError, RequestError, ServiceError, error_body
from service.files.library import About, Upload
from service.files.quota import too_large
from service.files.record import FileRecord
from service.http.disconnect import ClientGone
from service.http.json_reader import COMPRESSED
from service.http.validation import validated
from service.images.decode import accepted_kind
from service.images.reference import FilePage, PlacedImage
from service.uploads.form import FILE_FIELD, FormReader
from service.uploads.schemas import UploadFields, WarmBody

_BUFFER: Final = 256 * 1024
_AROUND: Final = 64 * 1024
"""Bytes of a form that are no file's: more than fields and heads may have."""
_HEAD: Final = 1024
"""Bytes that say what a file is."""
PDF: Final = "pdf"


@dataclass(frozen=True, slots=True)
class Received:
    """What came with the file's content."""

    filename: str
    kind: str
    fields: UploadFields


class Receiver:
    """Receives one form into `upload`."""

    def __init__(self, services: Services, upload: Upload) -> None:
        self._settings = services.settings
        self._upload = upload
        self._buffer = bytearray()
        self._kind: str | None = None

    async def receive(self, request: Request) -> Received:
        """Raises `ServiceError`, or `ClientGone` where it never comes whole."""
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise RequestError("unsupported_media_type", COMPRESSED)
        form = FormReader(request.headers.get("content-type", ""))
        seconds = self._settings.body_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._read(request, form)
        except TimeoutError:
            message = f"The file took longer than {seconds:g} s to arrive; send a smaller one, or faster."
            raise RequestError("body_timeout", message) from None
        except ClientDisconnect:
            raise ClientGone from None
        fields = validated(dict(form.finish()), UploadFields)
        assert form.filename is not None
        return Received(form.filename, self._known_kind(), fields)

    async def _read(self, request: Request, form: FormReader) -> None:
        most, size = self._upload.most + _AROUND, 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise too_large(self._upload.most)
            self._buffer += form.feed(chunk)
            if len(self._buffer) >= (_BUFFER if self._kind else _HEAD):
                await self._write()
        await self._write()

    async def _write(self) -> None:
        """Put the buffer on the disk. What nobody can use is refused with its first piece."""
        if not self._buffer:
            return
        if self._kind is None:
            formats = (*self._settings.image_formats, PDF)
            self._kind = accepted_kind(bytes(self._buffer[:_HEAD]), formats)
        most = self._settings.max_image_bytes
        if self._kind != PDF and self._upload.size + len(self._buffer) > most:
            raise ImageError("image_too_large", f"it is larger than {most} bytes.")
        await self._upload.write(bytes(self._buffer))
        self._buffer.clear()

    def _known_kind(self) -> str:
        if self._kind is None:
            raise ImageError("invalid_image", "it is empty.")
        return self._kind


async def kept(services: Services, upload: Upload, received: Received, tenant: str) -> FileRecord:
    """Look at what was received, and keep it where it can be read. Raises `ServiceError`."""
    page = await services.images.first_page(tenant, upload.digest, upload.content)
    fields = received.fields
    about = About(tenant, received.filename, fields.purpose, fields.seconds, received.kind, page.pages)
    return await services.files.keep(upload, about)


async def warm(services: Services, record: FileRecord) -> WarmBody:
    """Have every page computed and stored, one after the other behind all requests that somebody waits for. The file is
    kept whatever becomes of that."""
    for page in range(1, record.pages + 1):
        place = PlacedImage(FilePage(record.id, page), FILE_FIELD)
        try:
            async with services.images.loaded([place], record.tenant) as (image,):
                await warmed(services, image, record.tenant, FILE_FIELD)
        except ServiceError as error:
            failed = error_body(error.code, error.message, error.param)["error"]
            return WarmBody(pages=page - 1, failed=failed)
    return WarmBody(pages=record.pages, failed=None)
