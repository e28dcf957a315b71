"""The parts of the OpenAPI document that FastAPI cannot derive: bodies read by ourselves, examples,
errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.http.error_shapes import ANTHROPIC_PREFIX
from service.http.wire import WireModel

_REF: Final = "#/components/schemas/{model}"
ERROR: Final = "Error"
ANTHROPIC_ERROR: Final = "AnthropicError"
_ANTHROPIC_ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message", "param", "code"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        },
    },
}
_ERROR_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def error_answers(*statuses: int, schema: str = ERROR) -> dict[int | str, dict[str, Any]]:
    """`responses` of an operation for these statuses, all with the one error body."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=schema)}}}
    return {
        str(status): {"description": "See `code` in the body.", "content": content} for status in statuses
    }


def reads(
    model: type[WireModel], examples: dict[str, Any] | None = None, errors: str = ERROR
) -> dict[str, Any]:
    """What an operation whose body is `model` has in the document: the body, and how it may be refused unread."""
    media: dict[str, Any] = {"schema": {"$ref": _REF.format(model=model.__name__)}}
    if examples is not None:
        media["examples"] = examples
    body = {"required": True, "content": {"application/json": media}}
    return {"requestBody": body, "responses": error_answers(400, 408, 413, 415, schema=errors)}


def openapi_of(
    app: FastAPI, bodies: Sequence[type[WireModel]], needs_key: Callable[[str], bool]
) -> Callable[[], dict[str, Any]]:
    """What `app.openapi` should be: the derived document with our schemas and answers in it, made once.
    `bodies` are those that routes read by themselves; `needs_key` says which paths are closed without a key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _add_schemas(document.setdefault("components", {}), bodies)
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    _correct(operation, needs_key(path), _errors_of(path))
            app.openapi_schema = document
        return app.openapi_schema

    return openapi


def _add_schemas(components: dict[str, Any], bodies: Sequence[type[WireModel]]) -> None:
    _, models = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
    schemas = components.setdefault("schemas", {})
    schemas.update(models["$defs"], **{ERROR: _ERROR_SCHEMA, ANTHROPIC_ERROR: _ANTHROPIC_ERROR_SCHEMA})
    # FastAPI's own validation errors never leave the service in that shape.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}


def _errors_of(path: str) -> str:
    return ANTHROPIC_ERROR if path.startswith(ANTHROPIC_PREFIX) else ERROR


def _correct(operation: dict[str, Any], closed: bool, errors: str) -> None:
    responses = operation["responses"]
    if responses.pop("422", None) is not None:
        responses.update(error_answers(400, schema=errors))
    if closed:
        operation["security"] = [{"key": []}]
        responses.update(error_answers(401, schema=errors))
