"""A library to keep files in, and what the tests put there."""

from __future__ import annotations

from pathlib import Path

from service.files.library import About, FileLibrary
from service.files.quota import FileLimits
from service.files.record import FileRecord

LIMITS = FileLimits(file_bytes=1000, tenant_bytes=2000, tenant_files=4, seconds=100)
ABOUT = About("alice", "page.png", "vision", None, "png", 1)


class Watching:
    """Remembers what a library says."""

    def __init__(self) -> None:
        self.held = (0, 0)
        self.removed: list[str] = []

    def files_held(self, count: int, nbytes: int) -> None:
        self.held = (count, nbytes)

    def file_removed(self, reason: str) -> None:
        self.removed.append(reason)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def no_files() -> FileLibrary:
    """One that was never started, and has none."""
    return FileLibrary(Path("no-such-folder"), LIMITS, Watching())


async def kept(library: FileLibrary, content: bytes, about: About = ABOUT) -> FileRecord:
    """Upload `content` in two pieces."""
    half = len(content) // 2
    async with library.receiving(about.tenant) as upload:
        await upload.write(content[:half])
        await upload.write(content[half:])
        return await library.keep(upload, about)
