"""What has been asked to be kept or limited: pins and quotas, which outlive the process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

from store.errors import StoreError
from store.residency.wishes_file import ASIDE, Pin, Saved, Unreadable, WishesFile

K = TypeVar("K")
V = TypeVar("V")
_log = logging.getLogger(__name__)

MOST = 1 << 14
# Where there are too many pins so many go at once, so that the next ones need no look at all of them.
_CUT = MOST // 8


class WishesFull(StoreError):
    """There are so many hard pins, or quotas, that there is no room for another."""


class Wishes:
    """Pins by digest, quotas in bytes by tenant. Thread-safe.

    They are in force at once, in memory. `save` writes them to the file `path`, if there is one, and takes over what
    other services wrote there; who has a thread for it calls it from time to time. At most 16,384 pins are kept: where
    there are more, soft ones go, the next to end first.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._file = None if path is None else WishesFile(path)
        self._clock = clock
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._pins: dict[bytes, Pin] = {}
        self._quotas: dict[str, int] = {}
        # What was changed here and is not saved; None: taken back.
        self._new_pins: dict[bytes, Pin | None] = {}
        self._new_quotas: dict[str, int | None] = {}
        self._pruned = False
        self._loss = ""
        self._trouble = ""
        if self._file is not None:
            self._begin(self._file)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"pins and quotas {what}" for what in (self._loss, self._trouble) if what)

    def pin(self, digest: bytes, until: float | None) -> None:
        """Raises WishesFull."""
        with self._lock:
            if digest not in self._pins and len(self._pins) >= MOST:
                self._pins = bounded(self._pins, self._clock(), MOST - _CUT)
                if len(self._pins) >= MOST:
                    raise WishesFull(f"{len(self._pins)} entries are pinned for ever")
            self._pins[digest] = self._new_pins[digest] = Pin(until)

    def unpin(self, digest: bytes) -> bool:
        """False if it was not pinned."""
        with self._lock:
            found = self._pins.pop(digest, None) is not None
            if found:
                self._new_pins[digest] = None
            return found

    def pinned(self, digest: bytes, now: float) -> Pin | None:
        pin = self._pins.get(digest)
        return pin if pin is not None and pin.holds(now) else None

    def set_quota(self, tenant: str, nbytes: int | None) -> None:
        """None lifts it. Raises WishesFull."""
        with self._lock:
            if nbytes is None:
                self._quotas.pop(tenant, None)
            elif tenant not in self._quotas and len(self._quotas) >= MOST:
                raise WishesFull(f"{len(self._quotas)} tenants have a quota")
            else:
                self._quotas[tenant] = nbytes
            self._new_quotas[tenant] = nbytes

    def quota(self, tenant: str) -> int | None:
        return self._quotas.get(tenant)

    @property
    def quotas(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._quotas)

    def save(self) -> None:
        """Write down what was changed here, take over what was changed elsewhere. What cannot be written now stays in
        force and is tried again the next time."""
        if self._file is None:
            return
        with self._saving:
            try:
                if self._new_pins or self._new_quotas or self._pruned or self._file.changed():
                    with self._file.locked():
                        self._merge(self._file)
                self._trouble = ""
            except BlockingIOError:
                return  # another service is at it
            except OSError as error:
                self._note_trouble(self._file, error)

    def _begin(self, file: WishesFile) -> None:
        try:
            saved = file.read() or Saved()
        except Unreadable as error:
            self._loss = f"in {file.name} cannot be read; none of them are in force"
            _log.error("%s: %s", self._loss, error)
        except OSError as error:
            self._note_trouble(file, error)
        else:
            self._note_loss(file, saved)
            self._pins = bounded(saved.pins, self._clock(), MOST)
            self._pruned = len(self._pins) < len(saved.pins)
            self._quotas = dict(islice(saved.quotas.items(), MOST))

    def _merge(self, file: WishesFile) -> None:
        with self._lock:
            pins, quotas = dict(self._new_pins), dict(self._new_quotas)
        there = self._read(file)
        # Where nobody says otherwise, all that is in force here is.
        base = Saved(dict(self._pins), dict(self._quotas)) if there is None else there
        kept = bounded(changed(base.pins, pins), self._clock(), MOST)
        limits = dict(islice(changed(base.quotas, quotas).items(), MOST))
        if (
            (kept or limits)
            if there is None
            else (kept, limits, 0) != (there.pins, there.quotas, there.unread)
        ):
            if there is not None and there.unread:
                file.put_aside()
            file.write(Saved(kept, limits))
        self._pruned = False
        with self._lock:
            self._new_pins = since(self._new_pins, pins)
            self._new_quotas = since(self._new_quotas, quotas)
            self._pins = changed(kept, self._new_pins)
            self._quotas = changed(limits, self._new_quotas)

    def _read(self, file: WishesFile) -> Saved | None:
        try:
            saved = file.read()
        except Unreadable as error:
            self._loss = self._loss or f"in {file.name} became unreadable; it is kept as {file.name}{ASIDE}"
            _log.error("%s: %s", self._loss, error)
            file.put_aside()
            return None
        if saved is not None:
            self._note_loss(file, saved)
        return saved

    def _note_loss(self, file: WishesFile, saved: Saved) -> None:
        if saved.unread:
            self._loss = f"in {file.name}: {saved.unread} cannot be read and are not in force"
            _log.error("%s", self._loss)

    def _note_trouble(self, file: WishesFile, error: OSError) -> None:
        if not self._trouble:
            _log.error("%s cannot be read or written: %s", file.name, error)
        self._trouble = (
            f"in {file.name} cannot be read or written: {error.strerror}; those set since are in force"
        )


def bounded(pins: Mapping[bytes, Pin], now: float, most: int) -> dict[bytes, Pin]:
    """The pins that hold, at most `most` of them: hard ones, then the soft ones that end last. Hard ones give way only
    beyond `MOST`."""
    held = {digest: pin for digest, pin in pins.items() if pin.holds(now)}
    if len(held) <= most:
        return held
    hard = dict(islice(((digest, pin) for digest, pin in held.items() if pin.hard), MOST))
    soft = sorted(((pin.until or 0.0, digest) for digest, pin in held.items() if not pin.hard), reverse=True)
    return hard | {digest: Pin(until) for until, digest in soft[: max(0, most - len(hard))]}


def changed(base: Mapping[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    """`base` with `changes`, of which None takes away."""
    both: dict[K, V | None] = {**base, **changes}
    return {key: value for key, value in both.items() if value is not None}


def since(newest: Mapping[K, V | None], saved: Mapping[K, V | None]) -> dict[K, V | None]:
    """The changes that were made after those in `saved`."""
    return {key: value for key, value in newest.items() if key not in saved or saved[key] is not value}
