"""The files of a store's directory, what can be seen of them without LMDB, and how they are put aside."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from store.errors import TierUnavailable
from store.tiers.lmdb.crashes import CRASHES, deaths

DATA = "data.mdb"
LOCK = "lock.mdb"
BROKEN_MARK = "broken"
COMPACT = "compact"
ASIDE = ".aside"
_DEATHS = 2
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "lustre", "glusterfs", "beegfs", "gpfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.ceph", "virtiofs"),
}


def fault_on_sight(directory: Path) -> str | None:
    """Why LMDB must not be let near `directory`, None if nothing is seen. Raises TierUnavailable if it cannot be looked
    at."""
    try:
        for name in (DATA, LOCK):
            if (directory / name).exists() and not (directory / name).is_file():
                return f"has a {name} that is no file"
        if (directory / BROKEN_MARK).exists():
            return "was found broken in use"
        if deaths(directory) >= _DEATHS:
            return f"was being used when the process died, {_DEATHS} times"
    except OSError as error:
        raise TierUnavailable("unreadable", str(error)) from error
    return None


def put_aside(directory: Path) -> None:
    """Give the files names under which nobody opens them. Only the newest copy is kept, as each may be as big as the
    store, and only while there is room for it. It stays in the directory, the one place that is sure to be on the same
    file system and writable. Raises TierUnavailable."""
    try:
        for name in (DATA, LOCK, BROKEN_MARK, CRASHES):
            if os.path.lexists(directory / name):
                discard(directory / (name + ASIDE))
                (directory / name).rename(directory / (name + ASIDE))
    except OSError as error:
        raise TierUnavailable("unmovable", str(error)) from error


def clear(directory: Path) -> None:
    """Remove what an empty store consists of, as far as that is possible."""
    for name in (DATA, LOCK):
        with suppress(OSError):
            discard(directory / name)


def discard_aside(directory: Path) -> bool:
    """Remove what was put aside; False if there was nothing, or it cannot be removed."""
    found = False
    for name in (DATA, LOCK, BROKEN_MARK, CRASHES):
        with suppress(OSError):
            found |= os.path.lexists(directory / (name + ASIDE))
            discard(directory / (name + ASIDE))
    return found


def discard(path: Path) -> None:
    """Remove whatever is there. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def identity(directory: Path) -> tuple[int, int]:
    """Tells the data file from another at the same path. Raises OSError."""
    status = (directory / DATA).stat()
    return status.st_dev, status.st_ino


def network_filesystem(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Type of the network file system that `directory` lies on, None if on none that can be told. LMDB's
    locks and maps do not work there."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    resolved = directory.resolve()
    best, kind = Path("/"), ""
    for line in lines:
        _, where, found, *_ = line.split(" ")
        # Mount points are listed with blanks as octal escapes.
        place = Path(where.replace("\\040", " "))
        if resolved.is_relative_to(place) and place.is_relative_to(best):
            best, kind = place, found
    return kind if kind in _NETWORK else None
