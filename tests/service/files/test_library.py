"""Whose files there are, how much of them, and for how long."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.errors import RequestError, ServiceError, UnavailableError
from service.files.library import FileLibrary
from tests.service.files.keeping import ABOUT, LIMITS, Clock, Watching, kept

BOBS = dataclasses.replace(ABOUT, tenant="bob")


class Desk:
    """A library with what watches it."""

    def __init__(self, path: Path, **limits: int) -> None:
        self.clock, self.watching = Clock(), Watching()
        self.library = FileLibrary(path, dataclasses.replace(LIMITS, **limits), self.watching, self.clock)


@asynccontextmanager
async def started(path: Path, **limits: int) -> AsyncIterator[Desk]:
    desk = Desk(path, **limits)
    await desk.library.start()
    try:
        yield desk
    finally:
        await desk.library.close()


def run(path: Path, work: Callable[[Desk], Awaitable[None]], **limits: int) -> None:
    async def main() -> None:
        async with started(path, **limits) as desk:
            await work(desk)

    asyncio.run(main())


def code_of(library: FileLibrary, tenant: str, name: str) -> str:
    with pytest.raises(RequestError) as caught:
        library.find(tenant, name)
    return caught.value.code


def test_a_file_is_its_tenant_s_and_nobody_else_s(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        hers, his = await kept(desk.library, b"hers"), await kept(desk.library, b"his", BOBS)
        assert desk.library.of("alice") == [hers] and desk.library.of("bob") == [his]
        assert (
            code_of(desk.library, "bob", hers.id) == code_of(desk.library, "bob", "no-id") == "file_not_found"
        )
        with pytest.raises(RequestError):
            await desk.library.delete("bob", hers.id)
        assert desk.library.find("alice", hers.id) == hers
        assert desk.library.content(hers) == b"hers"

    run(tmp_path / "files", work)


def test_a_library_knows_its_files_again(tmp_path: Path) -> None:
    async def before(desk: Desk) -> None:
        await kept(desk.library, b"content")

    async def after(desk: Desk) -> None:
        (record,) = desk.library.of("alice")
        assert desk.library.content(record) == b"content"
        assert desk.watching.held == (1, 7)
        desk.clock.now += LIMITS.seconds
        assert desk.library.of("alice") == []

    run(tmp_path, before)
    run(tmp_path, after)


def test_nothing_is_made_before_the_first_upload(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        assert desk.library.of("alice") == []

    run(tmp_path / "files", work)
    assert list(tmp_path.iterdir()) == []


def test_quotas_are_each_tenant_s_and_count_what_is_under_way(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        first = await kept(desk.library, b"x" * 900)
        async with desk.library.receiving("alice") as under_way:
            await under_way.write(b"x" * 800)
            with pytest.raises(RequestError) as full:
                await kept(desk.library, b"x" * 301)
            assert full.value.code == "file_quota_exceeded"
            await kept(desk.library, b"x" * 300)
            await kept(desk.library, b"x" * 900, BOBS)
        await kept(desk.library, b"x" * 800)  # what was under way and not kept is free again
        await kept(desk.library, b"")
        with pytest.raises(RequestError) as many:
            await kept(desk.library, b"")
        assert many.value.code == "file_quota_exceeded" and "4 files" in many.value.message
        await desk.library.delete("alice", first.id)
        await kept(desk.library, b"x" * 900)
        assert desk.watching.held == (5, 900 + 800 + 300 + 900)

    run(tmp_path, work)


def test_a_file_that_is_too_large_is_refused_while_it_comes(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        async with desk.library.receiving("alice") as upload:
            await upload.write(b"x" * 1000)
            with pytest.raises(RequestError) as caught:
                await upload.write(b"x")
            assert caught.value.code == "file_too_large" and upload.size == 1000
        assert os.listdir(tmp_path) == [".lock"]

    run(tmp_path, work, tenant_bytes=10_000)


def test_a_file_is_gone_when_its_time_is_over(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        short = await kept(desk.library, b"short")
        long = await kept(desk.library, b"long", dataclasses.replace(ABOUT, seconds=5000))
        assert (short.expires_at, long.expires_at) == (1100, 6000)
        desk.clock.now = 1100
        assert code_of(desk.library, "alice", short.id) == "file_not_found"
        assert desk.library.of("alice") == [long]
        await kept(desk.library, b"next")  # an upload sweeps
        assert desk.watching.removed == ["expired"]
        assert not (tmp_path / short.id).exists()

    run(tmp_path, work)


def test_without_a_time_of_the_service_s_a_file_stays(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        record = await kept(desk.library, b"x")
        desk.clock.now += 1e9
        assert record.expires_at is None and desk.library.of("alice") == [record]

    run(tmp_path, work, seconds=0)


def test_a_damaged_file_is_told_once_and_is_gone(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        record = await kept(desk.library, b"content")
        (tmp_path / record.id).write_bytes(b"contens")
        with pytest.raises(RequestError) as caught:
            await asyncio.to_thread(desk.library.content, record)
        assert caught.value.code == "file_damaged"
        for _ in range(1000):
            if desk.watching.removed:
                break
            await asyncio.sleep(0.005)
        assert desk.watching.removed == ["damaged"]
        assert code_of(desk.library, "alice", record.id) == "file_not_found"
        assert os.listdir(tmp_path) == [".lock"]

    run(tmp_path, work)


FAILURES = {errno.ENOSPC: "storage_full", errno.EDQUOT: "storage_full", errno.EIO: "storage_failed"}


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
@pytest.mark.parametrize("number", FAILURES)
def test_a_disk_that_fails_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise OSError(number, os.strerror(number))

    async def work(desk: Desk) -> None:
        whole = await kept(desk.library, b"whole")
        with monkeypatch.context() as broken:
            broken.setattr(f"service.files.folder.os.{call}", fail)
            with pytest.raises(UnavailableError) as caught:
                await kept(desk.library, b"lost")
        assert (caught.value.code, caught.value.retry_after) == (FAILURES[number], 30.0)
        assert desk.library.of("alice") == [whole]
        assert set(os.listdir(tmp_path)) == {".lock", whole.id, f"{whole.id}.json"}
        await kept(desk.library, b"again")

    run(tmp_path, work)


def test_a_file_that_cannot_be_deleted_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    async def work(desk: Desk) -> None:
        record = await kept(desk.library, b"x")
        with monkeypatch.context() as broken:
            broken.setattr("service.files.folder.os.unlink", fail)
            with pytest.raises(UnavailableError):
                await desk.library.delete("alice", record.id)
        assert desk.library.of("alice") == [record] and desk.watching.removed == []
        await desk.library.delete("alice", record.id)
        assert desk.watching.removed == ["deleted"]

    run(tmp_path, work)


def test_a_folder_that_another_service_has_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with started(tmp_path) as first:
            record = await kept(first.library, b"x")
            async with started(tmp_path) as second:
                assert second.library.of("alice") == []
                with pytest.raises(ServiceError) as caught:
                    await kept(second.library, b"y")
                assert caught.value.code == "storage_failed"
                assert "in use by another service" in caplog.text
            assert first.library.content(record) == b"x"

    asyncio.run(main())


def test_who_leaves_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    """Cancelled at any moment, also while a thread writes: what it writes to is closed behind it."""

    async def work(desk: Desk) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        for pause in range(30):
            task = asyncio.create_task(kept(desk.library, b"x" * 100))
            await asyncio.sleep(pause / 10_000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        held = {name for record in desk.library.of("alice") for name in (record.id, f"{record.id}.json")}
        assert set(os.listdir(tmp_path)) == {".lock", *held}
        assert len(os.listdir("/proc/self/fd")) <= descriptors

    run(tmp_path, work, tenant_files=100, tenant_bytes=10_000)
