"""The files of all tenants. An index in memory says what there is; the folder has it.

Calls are for the loop; work on the disk is done by threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from service.errors import RequestError, ServiceError, UnavailableError
from service.files.disk import DiskThreads, in_our_words
from service.files.folder import PIECE, DamagedFileError, FileFolder, PartFile
from service.files.index import FileIndex
from service.files.quota import FileLimits, Quota, Share
from service.files.record import FileRecord, new_id

Result = TypeVar("Result")

_log = logging.getLogger(__name__)
_SWEEP_SECONDS: Final = 30.0


class FileObserver(Protocol):
    """Told what is held, and what went and why; metrics in the service, a list in tests."""

    def files_held(self, count: int, nbytes: int) -> None: ...

    def file_removed(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class About:
    """What a client says of its upload, and what its content was found to be. `seconds` that it shall stay, None as
    long as the service says."""

    tenant: str
    filename: str
    purpose: str
    seconds: int | None
    kind: str
    pages: int


class Upload:
    """A file on its way in."""

    def __init__(self, part: PartFile, share: Share, disk: DiskThreads) -> None:
        self.part = part
        self.share = share
        self._disk = disk

    async def write(self, piece: bytes) -> None:
        """Raises `RequestError` where it becomes too large, `UnavailableError` where the disk fails."""
        self.share.grow(len(piece))
        await self._disk.run(lambda: self.part.write(piece))

    @property
    def size(self) -> int:
        return self.part.size

    @property
    def most(self) -> int:
        """Bytes that it may have."""
        return self.share.most

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.part.sha256)

    def content(self) -> bytes:
        """All of it. Blocks, from any thread."""
        with in_our_words():
            return self.part.content()


class FileLibrary:
    """`clock` is in seconds since the epoch. Until `start` it is empty; a folder that is not there is made for the
    first upload."""

    def __init__(
        self, path: Path, limits: FileLimits, observer: FileObserver, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._seconds = limits.seconds
        self._observer = observer
        self._clock = clock
        self._index = FileIndex()
        self._quota = Quota(limits, self._index)
        self._disk = DiskThreads()
        self._folder: FileFolder | None = None
        self._opening = asyncio.Lock()
        self._sweeping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Find what is there, and from now on remove what is over. A folder that cannot be used is told in the log and
        to who uploads: all else works without it."""
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(ServiceError):
            if await self._disk.run(self._path.is_dir):
                await self._opened()
        self._sweeping = asyncio.create_task(self._sweep_for_ever())

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._folder is not None:
            await self._disk.run(self._folder.close)
        self._disk.close()

    def find(self, tenant: str, name: str) -> FileRecord:
        """The file `name` of `tenant`. Raises `RequestError`, for somebody else's as for none."""
        record = self._index.find(tenant, name, self._clock())
        if record is None:
            raise RequestError("file_not_found", "You have no file of that id, or its time is over.")
        return record

    def of(self, tenant: str) -> list[FileRecord]:
        """The tenant's files, oldest first."""
        return self._index.of(tenant, self._clock())

    @contextlib.asynccontextmanager
    async def receiving(self, tenant: str) -> AsyncGenerator[Upload, None]:
        """A file that `tenant` sends; what is not kept until the end of the context leaves nothing behind. Raises
        `RequestError` where it has no room, `UnavailableError` where the disk fails."""
        folder = await self._opened()
        await self._sweep()  # what is over makes room
        with self._quota.upload(tenant) as share:
            async with self._disk.holding(lambda: folder.begin(new_id()), PartFile.close) as part:
                yield Upload(part, share, self._disk)

    async def keep(self, upload: Upload, about: About) -> FileRecord:
        """Keep what was received: from now on it is there, also after a crash. Raises `UnavailableError`."""
        folder, part, now = await self._opened(), upload.part, self._clock()
        seconds = about.seconds or self._seconds
        record = FileRecord(
            id=part.name,
            tenant=about.tenant,
            filename=about.filename,
            purpose=about.purpose,
            kind=about.kind,
            bytes=part.size,
            sha256=part.sha256,
            pages=about.pages,
            created_at=now,
            expires_at=now + seconds if seconds else None,
        )
        try:
            await self._disk.run(lambda: folder.keep(part, record))
        except BaseException:
            await self._disk.run(lambda: folder.remove(record.id))
            raise
        self._index.add(record)
        upload.share.close()
        self._tell()
        return record

    async def delete(self, tenant: str, name: str) -> FileRecord:
        """Remove a file; what it was. Raises as `find`, and `UnavailableError`."""
        record = self.find(tenant, name)
        await self._remove(record, "deleted")
        return record

    def content(self, record: FileRecord) -> bytes:
        """The whole upload. Blocks, from any thread. Raises `RequestError`, `UnavailableError`."""
        return self._checked(record, lambda folder: folder.content(record))

    @contextlib.asynccontextmanager
    async def opened(self, record: FileRecord) -> AsyncGenerator[Callable[[int], Awaitable[bytes]], None]:
        """A call that gives the piece of the upload from there on; it was checked before. Raises as `content`."""

        def checked() -> int:
            return self._checked(record, lambda folder: folder.open(record))

        async with self._disk.holding(checked, os.close) as file:
            yield lambda start: self._disk.run(lambda: os.pread(file, PIECE, start))

    def _checked(self, record: FileRecord, work: Callable[[FileFolder], Result]) -> Result:
        assert self._folder is not None and self._loop is not None  # a record is from an open folder
        try:
            with in_our_words():
                return work(self._folder)
        except DamagedFileError:
            _log.error("an uploaded file is damaged and was removed", extra={"file": record.id})
            asyncio.run_coroutine_threadsafe(self._remove(record, "damaged"), self._loop)
            message = "The file was damaged on the service's disk and is gone: upload it again."
            raise RequestError("file_damaged", message) from None

    async def _opened(self) -> FileFolder:
        """The folder, which is this service's from now on."""
        async with self._opening:
            if self._folder is None:
                self._folder = folder = await self._disk.run(lambda: FileFolder(self._path))
                for record in folder.records:
                    self._index.add(record)
                for _ in range(folder.orphans):
                    self._observer.file_removed("orphan")
                self._tell()
            return self._folder

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with contextlib.suppress(ServiceError):  # it is in the log
                await self._sweep()

    async def _sweep(self) -> None:
        for record in self._index.over(self._clock()):
            await self._remove(record, "expired")

    async def _remove(self, record: FileRecord, reason: str) -> None:
        folder = self._folder
        if folder is None or not self._index.remove(record):
            return  # somebody else was first
        try:
            await self._disk.run(lambda: folder.remove(record.id))
        except UnavailableError:
            self._index.add(record)  # it would be back with the next start
            raise
        self._observer.file_removed(reason)
        self._tell()

    def _tell(self) -> None:
        records = list(self._index)
        self._observer.files_held(len(records), sum(record.bytes for record in records))
