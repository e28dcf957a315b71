"""Wire models of `/v1/files`, in the shapes of OpenAI."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from service.files.record import FileRecord
from service.http.wire import WireModel, conflict

Purpose = Literal["vision", "user_data"]
SHORTEST, LONGEST = 3600, 2_592_000
_FLAGS: Final = {"true": True, "false": False}


def _number(value: object) -> object:
    """A form has texts only."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _flag(value: object) -> object:
    return _FLAGS.get(value.lower(), value) if isinstance(value, str) else value


class UploadFields(WireModel):
    """The fields of the form beside the file."""

    purpose: Purpose
    anchor: Annotated[Literal["created_at"] | None, Field(alias="expires_after[anchor]")] = None
    seconds: Annotated[
        int | None,
        BeforeValidator(_number),
        Field(alias="expires_after[seconds]", ge=SHORTEST, le=LONGEST),
    ] = None
    warm: Annotated[bool, BeforeValidator(_flag)] = False

    @model_validator(mode="after")
    def _whole(self) -> UploadFields:
        if (self.anchor is None) != (self.seconds is None):
            raise conflict("expires_after", "'expires_after' has an 'anchor' and 'seconds'")
        return self


class FileQuery(BaseModel):
    """Of a listing: `after` is the id that the page before ended with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Annotated[str, Field(max_length=64)] | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: Annotated[str, Field(max_length=64)] | None = None


class WarmBody(BaseModel):
    """How many pages are ready to be asked about, and why not all."""

    pages: int
    failed: dict[str, Any] | None


class FileBody(BaseModel):
    """OpenAI's file. Ours: `kind` of its content, and the `pages` that it stands for."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Purpose
    status: Literal["processed"]
    status_details: None
    kind: str
    pages: int


class UploadedBody(FileBody):
    """`warm`: null where nobody asked for it."""

    warm: WarmBody | None


class FileListBody(BaseModel):
    object: Literal["list"]
    data: list[FileBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeletedBody(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


def file_body(record: FileRecord) -> dict[str, Any]:
    """A file as it is told."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": int(record.created_at),
        "expires_at": None if record.expires_at is None else int(record.expires_at),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
        "kind": record.kind,
        "pages": record.pages,
    }
