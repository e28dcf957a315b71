"""What the model that ships can do, said wherever a new user meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parent.parent / "models" / "page-reader"
_LIMITS: Final = (
    "The small model that ships: it reads synthetic pages of 6 x 6 cells, such as the demo draws, and nothing else. "
    "CONDUIT_MODEL names another one."
)


def limits_of(model: str) -> str | None:
    """What `CONDUIT_MODEL` must not be asked for; None for a model that is not ours to describe."""
    return _LIMITS if Path(model).resolve() == _FOLDER else None
