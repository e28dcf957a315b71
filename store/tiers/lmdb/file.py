"""Is this LMDB directory safe to open? If not, put it aside."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from store.errors import TierUnavailable
from store.tiers.lmdb import probe

DATA = "data.mdb"
LOCK = "lock.mdb"
BROKEN_MARK = "broken"
_QUARANTINE = ".quarantine-"
_PROBE_SECONDS = 300.0
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "lustre", "glusterfs", "beegfs", "gpfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.ceph", "virtiofs"),
}

# mdb.c of LMDB 0.9: a page header of 16 bytes, then MDB_meta; the page size stands in the first of its two
# MDB_db.
_META_BYTES = 152
_META_MAGIC = 0xBEEFC0DE
_META_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Meta:
    page_bytes: int
    last_page: int
    transaction: int


def _meta_at(data: bytes) -> _Meta | None:
    if len(data) < _META_BYTES:
        return None
    magic, version = struct.unpack_from("<II", data, 16)
    (page_bytes,) = struct.unpack_from("<I", data, 40)
    last_page, transaction = struct.unpack_from("<QQ", data, 136)
    if magic != _META_MAGIC or version != _META_VERSION or page_bytes not in (1 << n for n in range(9, 17)):
        return None
    return _Meta(page_bytes, last_page, transaction)


def _missing_bytes(file: Path) -> int | None:
    """By how many bytes the file is shorter than its newest meta page says; None if it is no LMDB file."""
    with file.open("rb") as stream:
        first = _meta_at(stream.read(_META_BYTES))
        if first is None:
            return None
        stream.seek(first.page_bytes)
        second = _meta_at(stream.read(_META_BYTES))
    if second is None:
        return None
    newest = max(first, second, key=lambda meta: meta.transaction)
    return max(0, (newest.last_page + 1) * newest.page_bytes - file.stat().st_size)


def fault_of(directory: Path) -> str | None:
    """Why the environment in `directory` must not be opened, None if it may be. Raises TierUnavailable if
    that cannot be found out.

    A file may be a few pages shorter than its meta page says without harm, as LMDB does not write pages that
    were taken and freed in one transaction. Then every page that holds data is touched, by the child.
    """
    file = directory / DATA
    try:
        if (directory / BROKEN_MARK).exists():
            return "was found broken in use"
        if not file.exists() or not file.stat().st_size:
            return None
        missing = _missing_bytes(file)
    except OSError as error:
        raise TierUnavailable("unreadable", str(error)) from error
    if missing is None:
        return "is no LMDB file"
    return _probe(directory, deep=missing > 0)


def _probe(directory: Path, deep: bool) -> str | None:
    command = [sys.executable, probe.__file__, str(directory), "deep" if deep else "shallow"]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TierUnavailable("unprobed", str(error)) from error
    if child.returncode == probe.SOUND:
        return None
    if child.returncode == probe.BROKEN:
        return f"is damaged ({child.stdout.strip()})"
    if child.returncode < 0:
        return f"killed its reader ({signal.Signals(-child.returncode).name})"
    raise TierUnavailable("unreadable", (child.stdout + child.stderr).strip()[-500:])


def network_filesystem(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Type of the network file system that `directory` lies on, None if on none that can be told. LMDB's
    locks and maps do not work there."""
    try:
        lines = mounts.read_text().splitlines()
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


def quarantine(directory: Path, when: int) -> Path:
    """Move the files aside to `<directory>.quarantine-<when>`; only the newest such copy is kept, as each may
    be as big as the store. Raises TierUnavailable if they cannot be moved."""
    aside = directory.with_name(f"{directory.name}{_QUARANTINE}{when}")
    try:
        for old in directory.parent.glob(f"{directory.name}{_QUARANTINE}*"):
            shutil.rmtree(old)
        aside.mkdir()
        for name in (DATA, LOCK, BROKEN_MARK):
            if (directory / name).exists():
                (directory / name).rename(aside / name)
    except OSError as error:
        raise TierUnavailable("unmovable", str(error)) from error
    return aside
