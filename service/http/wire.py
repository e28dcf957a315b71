"""What all wire models have in common: they are strict, and say what they refuse by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field
from pydantic_core import PydanticCustomError

# A picture that is there wherever the example is tried; a URL is written in its place.
EXAMPLE_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFElEQVR4nGM8ISfHgA0wYRUdtBIA0MoBFD5jqJkAAA"
    "AASUVORK5CYII="
)


def _whole(value: object) -> object:
    """JSON has one kind of number: `100.0` is an integer for whoever writes it so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


TOKEN_ID_PATTERN: Final = r"^[0-9]{1,9}$"
Whole = Annotated[int, BeforeValidator(_whole)]
Salt = Annotated[str, Field(min_length=1, max_length=256)]
Label = Annotated[str, Field(max_length=1024)]
"""A text that names something and is not read by the model."""


class WireModel(BaseModel):
    """Wrong types are not bent into shape and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def is_known_elsewhere(cls, place: Sequence[int | str]) -> bool:
        """True if other services of this kind have the field at `place`, and this one does not yet."""
        return False


def conflict(param: str, text: str) -> PydanticCustomError:
    """The fault that `service.http.validation` turns into `invalid_request`, with `param` at fault."""
    return PydanticCustomError("conflict", "{text}", {"param": param, "text": text})


def without_no_ops(body: object, known: dict[str, tuple[object, ...]]) -> object:
    """`body` without the fields whose value, of those `known`, changes nothing."""
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if not _is_no_op(value, known.get(name))}


def _is_no_op(value: object, no_ops: tuple[object, ...] | None) -> bool:
    # `1 == True` in Python and not in JSON.
    return no_ops is not None and (
        value is None
        or any(value == no_op and isinstance(value, bool) == isinstance(no_op, bool) for no_op in no_ops)
    )


def by_type(tags: dict[str, str], expected: str) -> Discriminator:
    """Picks the model by the field `type`. The tags start with `@` so that a path in an error can leave them
    out."""

    def tag(value: Any) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return tags.get(kind) if isinstance(kind, str) else None

    return Discriminator(tag, custom_error_type="unknown_variant", custom_error_message=expected)


def text_or(tag: str, kind: type, expected: str) -> Discriminator:
    def choose(value: Any) -> str | None:
        return "@text" if isinstance(value, str) else tag if isinstance(value, kind | BaseModel) else None

    return Discriminator(choose, custom_error_type="unknown_variant", custom_error_message=expected)
