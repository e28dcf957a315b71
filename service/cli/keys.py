"""Keys of entries as people write them: whole, or the beginning where it is one entry's alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from service.cli.client import CommandFailed, Service

_WHOLE: Final = 64
_LEAST: Final = 4
_HEX: Final = re.compile(f"[0-9a-f]{{{_LEAST},{_WHOLE}}}")
# As many as the service gives at once.
_PAGE: Final = 1000


def full_keys(service: Service, keys: list[str]) -> list[str]:
    """Each key whole; the store is listed once, and only where one is short. Raises `CommandFailed` for one that is
    none, that no entry's begins with, or that those of several do."""
    for key in keys:
        if not _HEX.fullmatch(key):
            raise CommandFailed(f"{key!r} is no key: {_LEAST} to {_WHOLE} lower-case hex digits.")
    if all(len(key) == _WHOLE for key in keys):
        return keys
    held = [entry["key"] for page in pages(service, {}) for entry in page]
    return [_one(key, held) for key in keys]


def pages(service: Service, query: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The store's entries that match, a page at a time, one at least."""
    cursor: str | None = ""
    while cursor is not None:
        asked = {**query, "limit": _PAGE, **({"cursor": cursor} if cursor else {})}
        page = service.call("GET", "/v1/cache/entries", params=asked)
        yield page["entries"]
        cursor = page["cursor"]


def _one(key: str, held: list[str]) -> str:
    if len(key) == _WHOLE:
        return key
    found = [whole for whole in held if whole.startswith(key)]
    if not found:
        raise CommandFailed(f"No entry's key begins with {key}.", "entry_not_found")
    if len(found) > 1:
        raise CommandFailed(
            f"{len(found)} keys begin with {key}: {found[0]}, {found[1]} ...", "ambiguous_key"
        )
    return found[0]
