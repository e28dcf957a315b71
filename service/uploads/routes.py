"""The routes of `/v1/files`. Each is about the caller's own files: of anybody else's it knows nothing."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.context import Services
from service.errors import ImageError, RequestError, ServiceError, error_kind
from service.files.library import Upload
from service.files.record import FILE_ID, FileRecord
from service.http.disconnect import ClientGone, run_until_disconnect
from service.http.openapi import error_answers
from service.http.unread import NEITHER, NO_BODY, NO_QUERY
from service.observability.audit import audit
from service.uploads.content import ContentAnswer
from service.uploads.form import FILE_FIELD
from service.uploads.operation import UPLOAD_OPERATION
from service.uploads.schemas import (
    FileBody,
    FileDeletedBody,
    FileListBody,
    FileQuery,
    UploadedBody,
    file_body,
)
from service.uploads.upload import Received, Receiver, kept, warm

FileName = Annotated[str, Path(json_schema_extra={"pattern": f"^{FILE_ID.pattern}$"})]
_ERRORS: Final = error_answers(400, 401, 404, 503)
_BINARY: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The upload as it came.", "content": {"application/octet-stream": {}}},
    **error_answers(410),
}


def files_router(services: Services) -> APIRouter:
    """The file routes over `services`."""
    endpoint = FilesEndpoint(services)
    router = APIRouter(prefix="/v1/files", tags=["files"], responses=dict(_ERRORS))
    add = router.add_api_route
    upload: dict[str, Any] = {"openapi_extra": UPLOAD_OPERATION, "dependencies": NO_QUERY}
    add("", endpoint.upload, methods=["POST"], response_model=UploadedBody, **upload)
    add("", endpoint.list, methods=["GET"], response_model=FileListBody, dependencies=NO_BODY)
    one: dict[str, Any] = {"dependencies": NEITHER}
    add("/{file_id}", endpoint.get, methods=["GET"], response_model=FileBody, **one)
    add("/{file_id}", endpoint.delete, methods=["DELETE"], response_model=FileDeletedBody, **one)
    content: dict[str, Any] = {"response_model": None, "response_class": Response, "responses": _BINARY}
    add("/{file_id}/content", endpoint.content, methods=["GET"], **content, **one)
    return router


class FilesEndpoint:
    """What changes something is told to the audit trail."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._files = services.files

    async def upload(self, request: Request) -> Response:
        """Keep a picture or a PDF, to be asked about by its id from then on."""
        outcome = "internal_error"
        try:
            answer = await self._upload(request)
            outcome = "ok"
            return answer
        except ImageError as error:
            outcome = error.code
            raise RequestError(error.code, f"The file: {error.message}", param=FILE_FIELD) from None
        except ServiceError as error:
            outcome = error.code
            raise
        except ClientGone:
            outcome = "client_gone"
            return Response(status_code=error_kind("aborted").status)  # read by the access log only
        finally:
            self._services.metrics.uploads.labels(outcome).inc()

    async def _upload(self, request: Request) -> Response:
        services, tenant = self._services, request.state.tenant
        services.admission.arrive(tenant)
        with services.admission.body(tenant):
            async with self._files.receiving(tenant) as upload:
                received = await Receiver(services, upload).receive(request)
                with services.admission.admit(tenant):
                    work = self._keep(request, upload, received)
                    return await run_until_disconnect(request.receive, work, services.last_orders)

    async def _keep(self, request: Request, upload: Upload, received: Received) -> Response:
        record = await kept(self._services, upload, received, request.state.tenant)
        audit(request, "upload file", **_told(record))
        warmth = await warm(self._services, record) if received.fields.warm else None
        told = None if warmth is None else warmth.model_dump(mode="json")
        return JSONResponse({**file_body(record), "warm": told})

    async def list(self, request: Request, query: Annotated[FileQuery, Query()]) -> JSONResponse:
        """Your files, newest first. `after` the `last_id` of one page gives the next."""
        records = self._files.of(request.state.tenant)
        if query.order == "desc":
            records.reverse()
        if query.after is not None:
            places = [place for place, record in enumerate(records) if record.id == query.after]
            if not places:
                raise RequestError("file_not_found", "You have no file of that id.", param="after")
            records = records[places[0] + 1 :]
        found = [record for record in records if query.purpose in (None, record.purpose)]
        page = found[: query.limit]
        return JSONResponse(
            {
                "object": "list",
                "data": [file_body(record) for record in page],
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
                "has_more": len(found) > len(page),
            }
        )

    async def get(self, request: Request, file_id: FileName) -> JSONResponse:
        """One file."""
        return JSONResponse(file_body(self._files.find(request.state.tenant, file_id)))

    async def delete(self, request: Request, file_id: FileName) -> JSONResponse:
        """Delete a file. What was computed of its pages stays in the store, as that of any image."""
        record = await self._files.delete(request.state.tenant, file_id)
        audit(request, "delete file", **_told(record))
        return JSONResponse({"id": record.id, "object": "file", "deleted": True})

    async def content(self, request: Request, file_id: FileName) -> Response:
        """The upload as it came, checked before its first byte is sent."""
        record = self._files.find(request.state.tenant, file_id)
        return await ContentAnswer.of(self._files, record)


def _told(record: FileRecord) -> dict[str, object]:
    """What the audit trail has of a file: not its name, which is its owner's."""
    return {"tenant": record.tenant, "file": record.id, "bytes": record.bytes, "kind": record.kind}
