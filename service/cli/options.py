"""Options that several commands have, and how what is typed is read."""

from __future__ import annotations

import base64
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from service.cli.client import CommandFailed

_SIZE_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class Mode(StrEnum):
    """Cache modes."""

    auto = "auto"
    read = "read"
    bypass = "bypass"
    rewrite = "rewrite"


def size(text: str) -> int:
    """`500`, `64K`, `1.5GiB` in bytes."""
    number = text.lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:].isalpha() else ""
    try:
        value = float(number.removesuffix(unit)) * _SIZE_UNITS[unit]
    except (ValueError, KeyError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"not a size: {text}")
    return int(value)


def ratio(text: str) -> float:
    """A number from 0 to 1; `nan` is none."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"not a number from 0 to 1: {text}")
    return value


def seconds(text: str) -> float:
    """A number of seconds that is not negative."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"not a number of seconds: {text}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


Images = Annotated[
    list[str], typer.Option("-i", "--image", metavar="IMAGE", help="URL or file; may be given again.")
]
Policy = Annotated[str | None, typer.Option("--policy", help="How tokens to refresh are chosen.")]
Ratio = Annotated[
    float | None,
    typer.Option("--refresh-ratio", parser=ratio, metavar="0..1", help="Share that is recomputed."),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, max=2**31 - 1)]
Tenant = Annotated[str | None, typer.Option("--tenant")]
Salt = Annotated[str | None, typer.Option("--salt", help="A part of the store of its own.")]


def image_url(image: str) -> str:
    """A URL as it is, a file of this machine as a data URL. Raises `CommandFailed`."""
    if image.lower().startswith(("http://", "https://", "data:")):
        return image
    try:
        data = Path(image).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{image}: {error.strerror}.", "no_such_file") from error
    except ValueError:
        raise CommandFailed("A name of a file holds signs that none has.", "no_such_file") from None
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"
