"""Which tiers do not do their work at the moment."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from store.errors import TierError, TierUnavailable

_log = logging.getLogger(__name__)


class Health:
    """Keeps the last fault of each tier until the tier works again. Thread-safe."""

    def __init__(self) -> None:
        self._faults: dict[str, str] = {}
        self._lock = threading.Lock()

    def failed(self, tier: str, error: TierError) -> None:
        """A full tier is not a faulty one."""
        if not isinstance(error, TierUnavailable):
            return
        with self._lock:
            fresh = tier not in self._faults
            self._faults[tier] = str(error)
        if fresh:
            # Where nobody foresaw the fault, its place is wanted.
            _log.warning("tier %s failed: %s", tier, error, exc_info=error.reason == "failed")

    def worked(self, tier: str) -> None:
        if tier in self._faults:
            with self._lock:
                self._faults.pop(tier, None)
            _log.info("tier %s works again", tier)

    @contextmanager
    def noting(self, tier: str) -> Iterator[None]:
        """What the tier fails at is noted, and that is all."""
        try:
            yield
        except TierError as error:
            self.failed(tier, error)

    def faults(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(f"{tier}: {fault}" for tier, fault in self._faults.items())
