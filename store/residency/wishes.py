"""What the operator has asked to be kept or limited: pins and quotas, which outlive the process."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from store.errors import StoreError

_log = logging.getLogger(__name__)


class WishesNotSaved(StoreError):
    """A pin or quota holds in this process, but could not be written down."""


@dataclass(frozen=True, slots=True)
class Pin:
    """`until` in seconds since the epoch: until then the entry is evicted only when nothing else is left.
    None: never evicted."""

    until: float | None

    @property
    def hard(self) -> bool:
        return self.until is None


class Wishes:
    """Pins by digest, quotas in bytes by tenant; in the file `path`, if there is one. Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pins: dict[bytes, Pin] = {}
        self._quotas: dict[str, int] = {}
        self.problems: tuple[str, ...] = ()
        self._read()

    def pin(self, digest: bytes, until: float | None) -> None:
        """Raises WishesNotSaved."""
        with self._lock:
            self._pins[digest] = Pin(until)
            self._write()

    def unpin(self, digest: bytes) -> bool:
        """False if it was not pinned. Raises WishesNotSaved."""
        with self._lock:
            found = self._pins.pop(digest, None) is not None
            if found:
                self._write()
            return found

    def pinned(self, digest: bytes, now: float) -> Pin | None:
        pin = self._pins.get(digest)
        return pin if pin is not None and (pin.until is None or pin.until > now) else None

    def set_quota(self, tenant: str, nbytes: int | None) -> None:
        """None lifts it. Raises WishesNotSaved."""
        with self._lock:
            if nbytes is None:
                self._quotas.pop(tenant, None)
            else:
                self._quotas[tenant] = nbytes
            self._write()

    def quota(self, tenant: str) -> int | None:
        return self._quotas.get(tenant)

    @property
    def quotas(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._quotas)

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            saved = json.loads(self._path.read_text())
            self._pins = {bytes.fromhex(key): Pin(until) for key, until in saved["pins"].items()}
            self._quotas = {str(tenant): int(nbytes) for tenant, nbytes in saved["quotas"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.problems = (f"pins and quotas in {self._path.name} cannot be read",)
            _log.error("%s: %s", self.problems[0], error)

    def _write(self) -> None:
        if self._path is None:
            return
        saved = {
            "pins": {digest.hex(): pin.until for digest, pin in self._pins.items()},
            "quotas": self._quotas,
        }
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.write_text(json.dumps(saved))
            os.replace(fresh, self._path)
        except OSError as error:
            raise WishesNotSaved(str(error)) from error
        self.problems = ()
