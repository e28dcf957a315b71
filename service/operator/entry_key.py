"""Keys of entries as they stand in a path."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Path

from service.errors import RequestError

KEY: Final = re.compile(r"[0-9a-f]{64}")
EntryKey = Annotated[str, Path(json_schema_extra={"pattern": f"^{KEY.pattern}$"})]
"""A key as it stands in a path. It is checked by `checked_key`: what cannot be a key is one that nobody holds."""


def checked_key(key: str) -> str:
    """`key` if it can be one of an entry. Raises what `no_entry` gives."""
    if not KEY.fullmatch(key):
        raise no_entry()
    return key


def no_entry() -> RequestError:
    """No tier holds it."""
    return RequestError("entry_not_found", "No tier holds an entry of that key (64 lower-case hex digits).")
