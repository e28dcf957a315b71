"""What is known of an uploaded file besides its content, and how that is written beside it."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass
from typing import Final

FILE_ID: Final = re.compile(r"file-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """`kind` is what the content is (`service.images.sniff`), `sha256` its digest in hex, `pages` how many pictures it
    stands for. Times are in seconds since the epoch; `expires_at` None: it stays until it is deleted."""

    id: str
    tenant: str
    filename: str
    purpose: str
    kind: str
    bytes: int
    sha256: str
    pages: int
    created_at: float
    expires_at: float | None


def new_id() -> str:
    """A name that nobody can guess."""
    return f"file-{secrets.token_hex(16)}"


def written(record: FileRecord) -> bytes:
    """`record` as it lies on disk, with a checksum: a flipped bit must not give a file to another tenant."""
    fields = _canonical(asdict(record))
    return json.dumps({"record": json.loads(fields), "sha256": _digest(fields)}).encode() + b"\n"


def read(line: bytes) -> FileRecord:
    """What `written` wrote. Raises `ValueError` for anything else."""
    try:
        found = json.loads(line)
        if _digest(_canonical(found["record"])) == found["sha256"]:
            return FileRecord(**found["record"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError("the record of a file is damaged")


def _canonical(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()


def _digest(fields: bytes) -> str:
    return hashlib.sha256(fields).hexdigest()
