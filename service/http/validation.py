"""Values as they came out of JSON -> wire model, or one error in our words that names the field."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.errors import RequestError, shown
from service.http.wire import TOKEN_ID_PATTERN, WireModel

Model = TypeVar("Model", bound=WireModel)

_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_OF_PATTERN: Final = {TOKEN_ID_PATTERN: "the number of a token"}
_BOUNDS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "greater_than": lambda ctx: f"greater than {ctx['gt']}",
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']}",
    "less_than": lambda ctx: f"less than {ctx['lt']}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']}",
    "string_too_short": lambda ctx: f"at least {ctx['min_length']} characters long",
    "string_too_long": lambda ctx: f"at most {ctx['max_length']} characters long",
    "too_short": lambda ctx: f"at least {ctx['min_length']} items long",
    "too_long": lambda ctx: f"at most {ctx['max_length']} items long",
    "literal_error": lambda ctx: f"one of {ctx['expected']}",
    "string_pattern_mismatch": lambda ctx: _OF_PATTERN.get(ctx["pattern"], f"a text like {ctx['pattern']}"),
}


def validated(value: object, model: type[Model]) -> Model:
    """`value`, as it came out of JSON, as `model`. Raises `RequestError` for the first fault found."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _translate(error.errors(include_input=False, include_url=False)[0], model) from None


def query_error(error: RequestValidationError) -> RequestError:
    """The first fault of a query string or path that FastAPI validated."""
    fault = error.errors()[0]
    return _translate(
        ErrorDetails(
            type=fault["type"], loc=tuple(fault["loc"][1:]), msg="", input=None, ctx=fault.get("ctx", {})
        ),
        WireModel,
    )


def _translate(fault: ErrorDetails, model: type[WireModel]) -> RequestError:
    kind, context = fault["type"], fault.get("ctx", {})
    place = [part for part in fault["loc"] if not _is_tag(part)]
    if kind == "extra_forbidden" and _is_tag(fault["loc"][-1]):
        place.append(fault["loc"][-1])  # a name that the caller made up, not one of our tags
    path = _path(place)
    if kind == "missing":
        return RequestError("missing_parameter", f"Missing parameter: '{path}'.", param=path)
    if kind == "extra_forbidden":
        if model.is_known_elsewhere(place):
            return RequestError(
                "unsupported_parameter", f"'{path}' is not supported yet; leave it out.", param=path
            )
        return RequestError(
            "unknown_parameter", f"Unknown parameter: '{path}'{_instead(place, model)}", param=path
        )
    if kind == "conflict":
        return RequestError(
            "invalid_request", f"Fields that do not fit together: {context['text']}.", param=context["param"]
        )
    return RequestError(
        "invalid_request", f"'{path or 'body'}' must be {_expected(fault)}.", param=path or None
    )


def _instead(place: list[int | str], model: type[WireModel]) -> str:
    """What to do about a name that is none of `model`'s own."""
    alike = difflib.get_close_matches(shown(str(place[-1])), model.model_fields, 1) if len(place) == 1 else []
    return f"; did you mean '{alike[0]}'?" if alike else "; leave it out."


def _is_tag(part: int | str) -> bool:
    """Tags of unions (see `service.chat.schemas`), and the mark that a fault is in a key, are no part of a
    path."""
    return isinstance(part, str) and (part.startswith("@") or part == "[key]")


def _expected(fault: ErrorDetails) -> str:
    kind = fault["type"]
    if kind == "unknown_variant":
        return fault["msg"]
    bound = _BOUNDS.get(kind)
    return bound(fault.get("ctx", {})) if bound else _EXPECTED.get(kind, "valid")


def _path(place: list[int | str]) -> str:
    """`messages[0].content[1].image_url`."""
    path = ""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{shown(part)}" if path else shown(part)
    return path
