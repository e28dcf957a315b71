"""What lies on the disk: whole files only, whatever a crash leaves, and nothing that somebody put there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.files.folder import DamagedFileError, FileFolder
from service.files.record import FileRecord, new_id, written


def put(folder: FileFolder, content: bytes = b"content", tenant: str = "alice") -> FileRecord:
    part = folder.begin(new_id())
    try:
        part.write(content)
        record = FileRecord(
            part.name, tenant, "a.png", "vision", "png", part.size, part.sha256, 1, 1000.0, None
        )
        folder.keep(part, record)
        return record
    finally:
        part.close()


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    folder = FileFolder(tmp_path / "files")
    record = put(folder)
    folder.close()
    again = FileFolder(tmp_path / "files")
    assert (again.records, again.orphans) == ([record], 0)
    assert again.content(record) == b"content"
    again.remove(record.id)
    assert os.listdir(tmp_path / "files") == [".lock"]


def test_what_is_not_kept_leaves_nothing(tmp_path: Path) -> None:
    folder = FileFolder(tmp_path)
    part = folder.begin(new_id())
    part.write(b"half")
    part.close()
    assert os.listdir(tmp_path) == [".lock"]


def keep_two_and_die(place: Path, calls: int) -> None:
    """In a process of its own: the second file comes as far as `calls` calls of the system."""

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls -= 1
            if calls < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    folder = FileFolder(place)
    put(folder, b"the first")
    for name in ("open", "write", "fsync", "rename"):
        setattr(os, name, dying(getattr(os, name)))
    put(folder, b"the second")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_crash_at_any_call_leaves_whole_files_only(tmp_path: Path) -> None:
    """Killed before each call that keeps a file makes, and behind the last: it is there or it is not."""
    found = []
    for calls in range(12):
        place = tmp_path / str(calls)
        if not (child := os.fork()):
            keep_two_and_die(place, calls)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        folder = FileFolder(place)
        contents = sorted(folder.content(record) for record in folder.records)
        assert contents[0] == b"the first" and contents[1:] in ([], [b"the second"])
        assert len(os.listdir(place)) == 1 + 2 * len(contents)
        found.append(len(contents))
        folder.close()
    assert found == sorted(found) and (found[0], found[-1]) == (1, 2)


@pytest.mark.parametrize("harm", ["flip", "cut", "longer", "gone", "link", "pipe", "folder"])
def test_a_content_that_changed_is_never_handed_out(tmp_path: Path, harm: str) -> None:
    folder = FileFolder(tmp_path / "files")
    record = put(folder)
    file, secret = tmp_path / "files" / record.id, tmp_path / "secret"
    secret.write_bytes(b"content")
    if harm == "flip":
        file.write_bytes(b"contens")
    elif harm == "cut":
        file.write_bytes(b"conten")
    elif harm == "longer":
        file.write_bytes(b"content!")
    else:
        file.unlink()
    if harm == "link":
        file.symlink_to(secret)  # the very same bytes
    elif harm == "pipe":
        os.mkfifo(file)  # opening it must not wait for a writer
    elif harm == "folder":
        file.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DamagedFileError):
        folder.content(record)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_start_sweeps_what_belongs_to_no_file_and_leaves_what_is_not_ours(tmp_path: Path) -> None:
    folder = FileFolder(tmp_path)
    whole, other = put(folder), put(folder, b"other")
    folder.close()
    names = {kind: new_id() for kind in ("part", "content", "record", "damaged", "renamed")}
    (tmp_path / f"{names['part']}.part").write_bytes(b"half")
    (tmp_path / names["content"]).write_bytes(b"no record")
    (tmp_path / f"{names['record']}.json").write_bytes(written(whole))
    (tmp_path / names["damaged"]).write_bytes(b"x")
    (tmp_path / f"{names['damaged']}.json").write_bytes(b"{}")
    (tmp_path / names["renamed"]).write_bytes(b"content")
    (tmp_path / f"{names['renamed']}.json").write_bytes(written(other))  # of another id
    (tmp_path / "notes.txt").write_text("of the operator")
    again = FileFolder(tmp_path)
    assert sorted(record.id for record in again.records) == sorted([whole.id, other.id])
    assert again.orphans == len(names)
    kept = {".lock", "notes.txt", *(f"{r.id}{end}" for r in (whole, other) for end in ("", ".json"))}
    assert set(os.listdir(tmp_path)) == kept


def test_a_folder_is_one_service_s(tmp_path: Path) -> None:
    first = FileFolder(tmp_path)
    with pytest.raises(BlockingIOError, match="in use by another service"):
        FileFolder(tmp_path)
    first.close()
    FileFolder(tmp_path).close()


def test_others_of_the_machine_may_not_read(tmp_path: Path) -> None:
    folder = FileFolder(tmp_path / "files")
    record = put(folder)
    assert (tmp_path / "files").stat().st_mode & 0o077 == 0
    assert (tmp_path / "files" / record.id).stat().st_mode & 0o077 == 0
