"""What all wire models have in common: they are strict, and say what they refuse by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

# A picture that is there wherever the example is tried; a URL is written in its place.
EXAMPLE_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFElEQVR4nGM8ISfHgA0wYRUdtBIA0MoBFD5jqJkAAA"
    "AASUVORK5CYII="
)

Salt = Annotated[str, Field(min_length=1, max_length=256)]


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
