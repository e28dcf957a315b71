"""The folder of uploaded files. Of each there is `<id>`, the upload itself, and `<id>.json`, its record; what is being
written ends with `.part`.

A content is whole before its record has a name, and a record goes before its content: so what a crash leaves is an
orphan, which the next start removes. Everything is opened by its name in the folder, and no link is followed. The
folder is one service's at a time. Calls block and raise `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Final

from service.files.record import FILE_ID, FileRecord, read, written

PIECE: Final = 1024 * 1024
_LOCK: Final = ".lock"
_OURS: Final = re.compile(rf"(?P<id>{FILE_ID.pattern})(?P<ending>|\.json|\.part|\.json\.part)")
_LONGEST_RECORD: Final = 64 * 1024
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DamagedFileError(Exception):
    """The content is not what was uploaded."""


class FileFolder:
    """Opening one makes the folder, takes it for this service, and removes orphans: `orphans` counts them, `records`
    are the files that are there. `BlockingIOError` where another service has it."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as opened:
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, self._folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=self._folder)
            opened.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, f"{path} is in use by another service") from None
            self.orphans = 0
            self.records = self._swept()
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def begin(self, name: str) -> PartFile:
        """A new file of the id `name`, to be written."""
        return PartFile(os.open(f"{name}.part", _WRITE, 0o600, dir_fd=self._folder), name, self._folder)

    def keep(self, part: PartFile, record: FileRecord) -> None:
        """Give `part` its name, and its record. After that it survives a crash."""
        os.fsync(part.descriptor)
        self._write_record(record)
        self._rename(f"{record.id}.part", record.id)
        self._rename(f"{record.id}.json.part", f"{record.id}.json")
        os.fsync(self._folder)

    def remove(self, name: str) -> None:
        """Remove a file, or what there is of it."""
        for ending in (".json", "", ".json.part", ".part"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}{ending}", dir_fd=self._folder)

    def open(self, record: FileRecord) -> int:
        """A descriptor of the content, which is as it was uploaded. Raises `DamagedFileError`."""
        try:
            file = self._open(record.id)
        except FileNotFoundError:
            raise DamagedFileError from None
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, file)
            if os.fstat(file).st_size != record.bytes or _digest(file, record.bytes) != record.sha256:
                raise DamagedFileError
            opened.pop_all()
        return file

    def content(self, record: FileRecord) -> bytes:
        """The whole content. Raises `DamagedFileError`."""
        file = self.open(record)
        try:
            return os.pread(file, record.bytes, 0)
        finally:
            os.close(file)

    def _write_record(self, record: FileRecord) -> None:
        file = os.open(f"{record.id}.json.part", _WRITE, 0o600, dir_fd=self._folder)
        try:
            write_all(file, written(record))
            os.fsync(file)
        finally:
            os.close(file)

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _open(self, name: str) -> int:
        try:
            file = os.open(name, _READ, dir_fd=self._folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a pipe that nobody fills
                raise DamagedFileError from None
            raise
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
        raise DamagedFileError

    def _swept(self) -> list[FileRecord]:
        names = [found for name in os.listdir(self._folder) if (found := _OURS.fullmatch(name))]
        present = {found["id"] for found in names if not found["ending"]}
        records = [self._record(found["id"]) for found in names if found["ending"] == ".json"]
        whole = {record.id: record for record in records if record is not None and record.id in present}
        for name in {found["id"] for found in names} - whole.keys():
            self.remove(name)
            self.orphans += 1
        return list(whole.values())

    def _record(self, name: str) -> FileRecord | None:
        """None for a record that cannot be read: whose the file is, nobody knows any more."""
        try:
            file = self._open(f"{name}.json")
            try:
                record = read(os.pread(file, _LONGEST_RECORD, 0))
            finally:
                os.close(file)
        except (OSError, ValueError, DamagedFileError):
            return None
        return record if record.id == name else None


class PartFile:
    """A file that is being received."""

    def __init__(self, descriptor: int, name: str, folder: int) -> None:
        self.descriptor = descriptor
        self.name = name
        self.size = 0
        self._folder = folder
        self._sha = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._sha.hexdigest()

    def write(self, piece: bytes) -> None:
        self._sha.update(piece)
        write_all(self.descriptor, piece)
        self.size += len(piece)

    def content(self) -> bytes:
        return os.pread(self.descriptor, self.size, 0)

    def close(self) -> None:
        """Let go of it; what was not kept is removed."""
        os.close(self.descriptor)
        for ending in (".part", ".json.part"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.name}{ending}", dir_fd=self._folder)


def write_all(file: int, data: bytes) -> None:
    with memoryview(data) as view:
        place = 0
        while place < len(view):
            place += os.write(file, view[place:])


def _digest(file: int, nbytes: int) -> str:
    sha = hashlib.sha256()
    for start in range(0, nbytes, PIECE):
        sha.update(os.pread(file, PIECE, start))
    return sha.hexdigest()
