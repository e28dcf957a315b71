"""From the bytes of an image file to the image that is in it, so that a repeated upload need not be decoded
again.

A second index beside the entries: it may forget anything at any time, and is believed only as far as its
checksum goes. An alias belongs to one tenant, as knowing that a file was seen before tells something about
others, and to one way of decoding, as background colour, orientation and target mode change the pixels.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from store.errors import InvalidKey, TierError
from store.header import checksum
from store.health import Health
from store.keys import DIGEST_BYTES
from store.lmdb_env import Environment

_DOMAIN = b"visual-kv/file"
_DATABASE = "aliases"
_VALUE = struct.Struct(f"<{DIGEST_BYTES}sII")
_CHECKSUM_BYTES = 8
# About 200 bytes each with everything around it.
_LIMIT = 1 << 19
_MAP_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class ImageName:
    """What a `VisualKey` needs to know of an image. `pixels` is its canonical digest."""

    pixels: bytes
    width: int
    height: int


def alias_of(tenant: str, decoding: str, file_digest: bytes) -> bytes:
    """Key of an alias. decoding: all settings that change what pixels a file gives, as one canonical string.
    file_digest: SHA-256 of the file's bytes."""
    if len(file_digest) != DIGEST_BYTES:
        raise InvalidKey(f"a file digest has {DIGEST_BYTES} bytes, not {len(file_digest)}")
    sha = hashlib.sha256()
    for field in (_DOMAIN, tenant.encode(), decoding.encode(), file_digest):
        sha.update(struct.pack("<Q", len(field)))
        sha.update(field)
    return sha.digest()


class AliasIndex:
    """In the directory `path`, or in memory alone. Thread-safe; nothing raises for what the disk did."""

    def __init__(self, path: Path | None, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._recent: OrderedDict[bytes, ImageName] = OrderedDict()
        self._lock = threading.Lock()
        self._health = Health()
        self._environment = None if path is None else Environment(path, [_DATABASE], _MAP_BYTES)

    def find(self, alias: bytes) -> ImageName | None:
        with self._lock:
            name = self._recent.get(alias)
            if name is not None:
                self._recent.move_to_end(alias)
                return name
        name = self._read(alias)
        if name is not None:
            self._remember(alias, name)
        return name

    def add(self, alias: bytes, name: ImageName) -> None:
        self._remember(alias, name)
        if self._environment is None:
            return
        value = _VALUE.pack(name.pixels, name.width, name.height)
        try:
            with self._environment.write() as (transaction, opened):
                database = opened[_DATABASE]
                if transaction.stat(database)["entries"] >= self._limit:
                    # Which ones to forget hardly matters: an alias is cheap to learn again.
                    transaction.drop(database, delete=False)
                transaction.put(alias, value + _seal(alias, value), db=database)
            self._health.worked(_DATABASE)
        except TierError as error:
            self._health.failed(_DATABASE, error)

    def problems(self) -> tuple[str, ...]:
        own = () if self._environment is None else self._environment.problems
        return (*own, *self._health.faults())

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()

    def _read(self, alias: bytes) -> ImageName | None:
        if self._environment is None:
            return None
        try:
            with self._environment.read() as (transaction, opened):
                found = transaction.get(alias, db=opened[_DATABASE])
                stored = None if found is None else bytes(found)
        except TierError as error:
            self._health.failed(_DATABASE, error)
            return None
        if stored is None or len(stored) != _VALUE.size + _CHECKSUM_BYTES:
            return None
        value = stored[: _VALUE.size]
        return ImageName(*_VALUE.unpack(value)) if _seal(alias, value) == stored[_VALUE.size :] else None

    def _remember(self, alias: bytes, name: ImageName) -> None:
        with self._lock:
            self._recent[alias] = name
            self._recent.move_to_end(alias)
            if len(self._recent) > self._limit:
                self._recent.popitem(last=False)


def _seal(alias: bytes, value: bytes) -> bytes:
    return checksum(alias + value)[:_CHECKSUM_BYTES]
