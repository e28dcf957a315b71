"""`file://` in folders that the operator listed, and nowhere else."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from service.errors import ImageError
from service.images.local import LocalFolders
from service.settings import Settings, SettingsError, load_settings
from tests.service.asking import ask, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import plain

MOST = 10_000


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder that is listed, beside one that is not."""
    (tmp_path / "secret.png").write_bytes(plain())
    folder = tmp_path / "pages"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "one.png").write_bytes(plain((1, 0, 0)))
    (folder / "deep" / "er" / "ä b?.png").write_bytes(plain((2, 0, 0)))
    return folder


def url(path: Path | str) -> str:
    return "file://" + quote(str(path))


def refusal(pages: Path, text: str) -> ImageError:
    with pytest.raises(ImageError) as caught:
        LocalFolders([pages], MOST).read(text)
    return caught.value


def test_a_file_of_a_listed_folder_is_a_picture(start: Start, engine: FakeEngine, pages: Path) -> None:
    api = start(local_folders=(pages,))
    names = [url(pages / "one.png"), url(pages / "deep" / "er" / "ä b?.png")]
    api.post("/v1/chat", json=ask(*names, names[0])).raise_for_status()
    assert [image.pixels[0] for image in engine.requests[-1].images] == [1, 2, 1]
    local = names[0].replace("file://", "FILE://localhost")
    api.post("/v1/chat", json=ask(local)).raise_for_status()


def test_a_file_that_changes_is_read_anew(start: Start, engine: FakeEngine, pages: Path) -> None:
    api = start(local_folders=(pages,))
    for red in (1, 7):
        (pages / "one.png").write_bytes(plain((red, 0, 0)))
        api.post("/v1/chat", json=ask(url(pages / "one.png"))).raise_for_status()
        assert engine.requests[-1].images[0].pixels[0] == red


def test_without_a_list_nothing_is_opened(api: httpx.Client, pages: Path) -> None:
    error = refused(api.post("/v1/chat", json=ask(url(pages / "one.png"))), 400, "invalid_image_url")
    assert error["message"] == "Image 1: it is neither an http(s) URL nor a data URL."


@pytest.mark.parametrize(
    "text",
    [
        *("file:///etc/passwd", "file:///", "file:///no/such/thing", "file:one.png", "file://[", "{}"),
        *("{}/../secret.png", "{}/%2e%2e/secret.png", "{}/deep//er", "{}/./one.png", "{}x/one.png"),
        *("file://elsewhere{}/one.png", "{}/one.png?x", "{}/one.png#x", "file:{}/one.png%00"),
        "{}/" + "a" * 9000,
    ],
)
def test_what_is_outside_or_unclear_is_refused_without_a_look(
    pages: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> int:
        raise AssertionError("opened")

    target = text.format(pages) if text.startswith("file:") else "file://" + text.format(pages)
    with monkeypatch.context() as watched:
        watched.setattr("service.images.local.os.open", never)
        error = refusal(pages, target)
    assert error.code in ("image_url_blocked", "invalid_image_url")
    assert str(pages.parent) not in error.message


def test_what_is_there_and_outside_looks_like_what_is_not(pages: Path) -> None:
    there, nowhere = (refusal(pages, url(pages.parent / name)) for name in ("secret.png", "none.png"))
    assert (there.code, there.message) == (nowhere.code, nowhere.message)
    assert there.code == "image_url_blocked"


def test_no_link_is_followed(pages: Path) -> None:
    (pages / "link.png").symlink_to(pages.parent / "secret.png")
    (pages / "inner.png").symlink_to(pages / "one.png")
    (pages / "out").symlink_to(pages.parent)
    for name in ("link.png", "inner.png", "out/secret.png", "out/pages/one.png"):
        assert refusal(pages, url(pages / name)).code == "image_fetch_failed"


def test_a_listed_folder_may_itself_be_a_link(pages: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to(pages)
    folders = LocalFolders([tmp_path / "shortcut"], MOST)
    assert folders.read(url(tmp_path / "shortcut" / "one.png")) == plain((1, 0, 0))


@pytest.mark.parametrize("name", ["pipe", "deep", "none.png", "one.png/x", "socket"])
def test_what_is_no_plain_file_is_refused_at_once(
    pages: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(pages / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(pages)  # the path of a socket is short
        listening.bind("socket")
        assert refusal(pages, url(pages / name)).code == "image_fetch_failed"


def test_sizes_are_bounded(pages: Path) -> None:
    (pages / "large.png").write_bytes(b"x" * (MOST + 1))
    assert refusal(pages, url(pages / "large.png")).code == "image_too_large"
    (pages / "large.png").write_bytes(b"x" * MOST)
    assert len(LocalFolders([pages], MOST).read(url(pages / "large.png"))) == MOST


def test_a_folder_that_becomes_a_link_while_it_is_read_leads_nowhere(pages: Path) -> None:
    """Somebody swaps a folder for a link outwards, again and again: the secret is never read."""
    secret, inner = pages.parent / "er", pages / "deep" / "er"
    secret.mkdir()
    (secret / "x.png").write_bytes(b"secret")
    (inner / "x.png").write_bytes(b"public")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (pages / "deep").rename(pages / "aside")
            (pages / "deep").symlink_to(pages.parent)
            time.sleep(0.0005)
            (pages / "deep").unlink()
            (pages / "aside").rename(pages / "deep")
            time.sleep(0.0005)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        found = set()
        for _ in range(2000):
            try:
                found.add(LocalFolders([pages], MOST).read(url(inner / "x.png")))
            except ImageError as error:
                found.add(error.code.encode())
        assert found <= {b"public", b"image_fetch_failed"} and len(found) == 2
    finally:
        stop.set()
        swapping.join()


@pytest.mark.parametrize("value", ["pages", "/no/such/folder", "/dev/null", "/tmp/../etc"])
def test_a_folder_that_cannot_work_stops_the_start(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CONDUIT_LOCAL_FOLDERS", value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "CONDUIT_LOCAL_FOLDERS" in str(caught.value)


def test_folders_are_listed_by_commas(monkeypatch: pytest.MonkeyPatch, pages: Path) -> None:
    monkeypatch.setenv("CONDUIT_LOCAL_FOLDERS", f"{pages}, {pages.parent}")
    assert Settings().local_folders == (pages, pages.parent)
