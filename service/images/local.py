"""Pictures of folders that the operator lists, by `file://` URLs. Off where none is listed.

A path is walked from its listed folder name by name, and no link is followed on the way: nothing outside can be
reached, whatever somebody puts there while it is read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from service.errors import ImageError
from service.images.url import check_length

SCHEME: Final = "file:"
_HOSTS: Final = frozenset({"", "localhost"})
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalFolders:
    """`folders` as the operator wrote them; a link to one of them is his own choice, and is resolved once."""

    def __init__(self, folders: Sequence[Path], max_bytes: int) -> None:
        self._roots = {_names(os.fsencode(folder)): folder.resolve() for folder in folders}
        self._max_bytes = max_bytes

    def __bool__(self) -> bool:
        return bool(self._roots)

    def read(self, url: str) -> bytes:
        """The file of a `file://` URL. Blocks. Raises `ImageError`, with one text for all that is outside."""
        names = _names(_path(url))
        for root, folder in self._roots.items():
            if len(names) > len(root) and names[: len(root)] == root:
                return self._read(folder, names[len(root) :])
        raise ImageError("image_url_blocked", "its URL points to a folder this service does not read from.")

    def _read(self, folder: Path, names: Sequence[bytes]) -> bytes:
        try:
            with contextlib.ExitStack() as opened:
                place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.callback(os.close, place)
                for name, flags in zip(names, (*[_FOLDER] * (len(names) - 1), _FILE), strict=True):
                    place = os.open(name, flags, dir_fd=place)
                    opened.callback(os.close, place)
                return self._content(place)
        except OSError:
            text = "there is no such file; links and what is no plain file are not read."
            raise ImageError("image_fetch_failed", text) from None

    def _content(self, file: int) -> bytes:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError
        # One byte more than what is taken, whatever its size is said to be: it may be growing.
        with open(file, "rb", closefd=False) as stream:
            data = stream.read(self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise ImageError("image_too_large", f"it is larger than {self._max_bytes} bytes.")
        return data


def _path(url: str) -> bytes:
    check_length(url)
    try:
        parts = urlsplit(url.strip())
        plain = parts.netloc.lower() in _HOSTS and not parts.query and not parts.fragment
    except ValueError:
        plain = False
    if not plain or not parts.path.startswith("/"):
        raise ImageError("invalid_image_url", "its URL is no file:///folder/name.")
    return unquote_to_bytes(parts.path)


def _names(path: bytes) -> tuple[bytes, ...]:
    """The names of an absolute path. Raises `ImageError` for one that does not say plainly where it leads."""
    names = tuple(path.strip(b"/").split(b"/")) if path.strip(b"/") else ()
    if any(name in (b"", b".", b"..") or b"\0" in name for name in names):
        raise ImageError("invalid_image_url", "its URL is no file:///folder/name.")
    return names
