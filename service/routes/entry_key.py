"""Keys of entries as they stand in a path."""

from __future__ import annotations

import re
from typing import Final

from service.errors import RequestError

_KEY: Final = re.compile(r"[0-9a-f]{64}")


def checked_key(key: str) -> str:
    """`key` if it can be one of an entry. Raises what `no_entry` gives."""
    if not _KEY.fullmatch(key):
        raise no_entry()
    return key


def no_entry() -> RequestError:
    """No tier holds it."""
    return RequestError("entry_not_found", "No tier holds an entry of that key (64 lower-case hex digits).")
