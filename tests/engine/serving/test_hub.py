"""A model's name becomes a folder, or one line that says what to change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from huggingface_hub import errors

from engine.errors import UnsupportedModel
from engine.phases import phase
from engine.serving.device import pick_device
from engine.serving.hub import checkpoint_folder

ANSWER = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert checkpoint_folder(str(tmp_path), None) == tmp_path


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "nowhere", "a/b/c"])
def test_what_is_no_hub_name_is_not_looked_for(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="neither a folder nor a hub name"):
        checkpoint_folder(name, None)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (errors.GatedRepoError("x", response=ANSWER), "HF_TOKEN"),
        (errors.RepositoryNotFoundError("x", response=ANSWER), "there is none of that name"),
        (errors.RevisionNotFoundError("x", response=ANSWER), r"no revision 'v9' \(CONDUIT_REVISION\)"),
        (errors.LocalEntryNotFoundError("x"), "the hub cannot be reached"),
        (errors.HFValidationError("x"), "HFValidationError"),
        (
            PermissionError(13, "Permission denied", "/models"),
            "Permission denied in the hub's cache .*HF_HOME",
        ),
        (OSError(28, "No space left on device"), "No space left on device in the hub's cache"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_u4_a_hub_model_that_cannot_be_had_is_one_line(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, told: str
) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise fault

    monkeypatch.setattr("engine.serving.hub.snapshot_download", fail)
    with pytest.raises(UnsupportedModel, match=told) as caught:
        checkpoint_folder("org/model", "v9")
    assert caught.value.message.startswith("CONDUIT_MODEL: 'org/model' cannot be fetched: ")
    assert "\n" not in caught.value.message


def test_a_hub_model_is_asked_for_by_its_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        return str(tmp_path)

    monkeypatch.setattr("engine.serving.hub.snapshot_download", fetch)
    assert checkpoint_folder("org/model", "v9") == tmp_path
    assert asked == [("org/model", "v9")]


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", "mps"])
def test_u9_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UnsupportedModel, match=f"CONDUIT_DEVICE: there is no {name} here"):
        pick_device(name)


def test_a_device_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for name in ("cpu", "cuda", "cuda:1", "mps"):
        assert pick_device(name) == name
    with pytest.raises(UnsupportedModel, match="cuda:2"):
        pick_device("cuda:2")


def test_a_phase_is_told_with_its_seconds_once_it_is_through(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), phase("weights loaded", device="cpu"):
        assert not caplog.records
    (line,) = caplog.records
    assert (line.message, vars(line)["device"]) == ("weights loaded", "cpu")
    assert vars(line)["seconds"] >= 0
    with pytest.raises(ZeroDivisionError), phase("never"):
        _ = 1 / 0
    assert len(caplog.records) == 1
