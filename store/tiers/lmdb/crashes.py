"""What a process died of while it was inside LMDB. No handler of our own survives such a death; Python's faulthandler
writes the stack to a file first."""

from __future__ import annotations

import faulthandler
import logging
import os
from pathlib import Path
from typing import BinaryIO

_log = logging.getLogger(__name__)

CRASHES = "crashes"
_HEADLINE = "Fatal Python error"
_INSIDE = "store/tiers/lmdb/"
_MOST_BYTES = 1 << 20


def watch(directory: Path) -> BinaryIO | None:
    """From now on a fatal signal writes the stack of this process into `directory`. None where that cannot be, and
    where faulthandler is in use already (tests, PYTHONFAULTHANDLER): then its report goes where somebody wants it."""
    if faulthandler.is_enabled():
        return None
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(directory / CRASHES, flags, 0o600)
    except OSError as error:
        _log.warning("no report of a crash can be kept: %s", error)
        return None
    file = os.fdopen(descriptor, "ab", buffering=0)
    faulthandler.enable(file, all_threads=False)
    return file


def unwatch(file: BinaryIO) -> None:
    faulthandler.disable()
    file.close()


def deaths(directory: Path) -> int:
    """How many reports in `directory` are of a process that died inside LMDB. They go to the log. Raises OSError."""
    file = directory / CRASHES
    if not file.is_file():
        return 0
    with file.open("rb") as stream:
        text = stream.read(_MOST_BYTES).decode(errors="replace")
    reports = text.split(_HEADLINE)[1:]
    inside = sum(_INSIDE in report for report in reports)
    if reports:
        _log.warning("the process that had the store open before died:%s", reports[-1][:2000])
    if not inside:
        os.truncate(file, 0)
    return inside
