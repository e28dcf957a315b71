"""A child process does with a directory first what this process is about to do; see `probe`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from store.errors import TierUnavailable
from store.tiers.lmdb import probe

_ROOT = Path(__file__).parents[3]
_FATAL = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


class Rehearsal:
    """Begins at once. Raises TierUnavailable if no process can be started."""

    def __init__(self, directory: Path, databases: Sequence[str], map_size: int) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", probe.__name__, str(directory), str(map_size), *databases]
        try:
            self._child = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise TierUnavailable("unprobed", str(error)) from error

    def fault(self, patience: float) -> str | None:
        """Why the directory must not be opened, None if it may be. Raises TierUnavailable: "checking" if `patience`
        seconds do not suffice, then it may be asked again; other reasons if nothing is wrong with the files."""
        try:
            said, _ = self._child.communicate(timeout=patience)
        except subprocess.TimeoutExpired as error:
            raise TierUnavailable("checking", "a large store takes a while") from error
        return verdict(self._child.returncode, said.strip()[-500:])

    def cancel(self) -> None:
        self._child.kill()
        self._child.communicate()


def verdict(status: int, said: str) -> str | None:
    """What it means that a child ended with `status`. Raises TierUnavailable."""
    if status == probe.SOUND:
        return None
    if status == probe.BROKEN:
        return f"is damaged ({said})"
    if -status in _FATAL:
        return f"killed its reader ({signal.Signals(-status).name})"
    raise TierUnavailable("disk_full" if status == probe.NO_ROOM else "unprobed", said)
