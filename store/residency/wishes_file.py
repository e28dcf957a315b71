"""Pins and quotas as a file that several services may share: JSON, replaced as a whole, under a lock.

{"pins": {digest in hex: end in seconds since the epoch, or null for never}, "quotas": {tenant: bytes}}
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from store.records.keys import DIGEST_BYTES

ASIDE = ".aside"
# Some times what the file can hold of pins and quotas at most: to read it takes the interpreter to itself.
_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Pin:
    """`until` in seconds since the epoch: until then the entry is evicted only when nothing else is left.
    None: never evicted."""

    until: float | None

    @property
    def hard(self) -> bool:
        return self.until is None

    def holds(self, now: float) -> bool:
        return self.until is None or self.until > now


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file says. `unread`: how much of it makes no sense."""

    pins: Mapping[bytes, Pin] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    unread: int = 0


class Unreadable(Exception):
    """The file is none of ours, or damaged."""


class WishesFile:
    """Not thread-safe. Everything raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return self._path.name

    def changed(self) -> bool:
        """Whether it is another file than at the last `read` or `write`."""
        return self._look() != self._seen

    def read(self) -> Saved | None:
        """None if there is no file. Raises Unreadable."""
        self._seen = self._look()
        if self._seen is None:
            return None
        mode, size, *_ = self._seen
        if not stat.S_ISREG(mode) or size > _MOST_BYTES:
            raise Unreadable("no file, or too large")
        with self._path.open("rb") as stream:
            return parse(stream.read(_MOST_BYTES))

    def write(self, saved: Saved) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)  # whatever it is: a pipe would be waited at
        with fresh.open("x") as stream:
            stream.writelines(lines(saved))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(fresh, self._path)
        self._seen = self._look()

    def put_aside(self) -> None:
        """Give it a name under which somebody may look at it."""
        self._path.replace(self._path.with_name(self._path.name + ASIDE))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other service reads and writes it meanwhile. Raises BlockingIOError if one does now."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    def _look(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino


def parse(text: bytes) -> Saved:
    """Raises Unreadable for what is no such file at all; leaves out what else makes no sense."""
    try:
        found = json.loads(text)
        pins, quotas = found["pins"].items(), found["quotas"].items()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    good_pins = {digest: pin for key, until in pins if (digest := _digest(key)) and (pin := _pin(until))}
    good_quotas = {tenant: nbytes for tenant, nbytes in quotas if _is_text(tenant) and _is_size(nbytes)}
    return Saved(good_pins, good_quotas, len(pins) + len(quotas) - len(good_pins) - len(good_quotas))


def lines(saved: Saved) -> Iterator[str]:
    """The file, bit by bit: encoding it at once would keep all other threads waiting."""
    yield '{"pins": {'
    for place, (digest, pin) in enumerate(saved.pins.items()):
        yield f'{"," if place else ""}\n"{digest.hex()}": {json.dumps(pin.until)}'
    yield f'}},\n"quotas": {json.dumps(dict(saved.quotas))}}}\n'


def _digest(key: str) -> bytes | None:
    try:
        digest = bytes.fromhex(key)
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES else None


def _pin(until: object) -> Pin | None:
    if until is None:
        return Pin(None)
    if isinstance(until, bool) or not isinstance(until, int | float):
        return None
    try:
        end = float(until)
    except OverflowError:
        return None
    return Pin(end) if math.isfinite(end) else None


def _is_size(nbytes: object) -> bool:
    return isinstance(nbytes, int) and not isinstance(nbytes, bool) and nbytes >= 0


def _is_text(tenant: str) -> bool:
    """JSON knows halves of characters, which no answer could show."""
    return not any("\ud800" <= character <= "\udfff" for character in tenant)
