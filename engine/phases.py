"""What a start does, one line of the log a phase, so that it is never silent and slow without saying why."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger("conduit.start")


@contextmanager
def phase(done: str, **facts: object) -> Iterator[None]:
    """Log `done` with its seconds when the block is through; nothing where it raises."""
    began = time.monotonic()
    yield
    _log.info(done, extra={"seconds": round(time.monotonic() - began, 1), **facts})
