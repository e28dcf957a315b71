"""`POST /v1/files` in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from service.http.openapi import error_answers
from service.uploads.schemas import LONGEST, SHORTEST

_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "A picture or a PDF."},
        "purpose": {"type": "string", "enum": ["vision", "user_data"]},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": SHORTEST, "maximum": LONGEST},
        "warm": {"type": "boolean", "description": "Compute every page before the answer."},
    },
    "additionalProperties": False,
}
UPLOAD_OPERATION: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}},
    "responses": error_answers(400, 403, 408, 413, 415, 429, 500, 503, 507),
}
