"""An entry's name changes with everything that changes the entry, and with nothing else (promise 1)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.messages import ImageInput
from engine.serving.load import load_runtime
from engine.settings import ModelSettings
from store.open import open_store
from store.settings import StoreSettings
from tests.engine.asking import IMAGES


def name_of(model: Path, codec: str = "raw", tenant: str = "acme", **settings: object) -> str:
    """The name of one image's entry."""
    store = open_store(StoreSettings(codec=codec))
    named = ModelSettings(**{"path": str(model), "device": "cpu", "name": "tiny", **settings})  # type: ignore[arg-type]
    runtime = load_runtime(named, store, codec)
    store.entries.close()
    image: ImageInput = IMAGES[0]
    return runtime.key(tenant, image).hex


@pytest.fixture(scope="module")
def before(tiny_path: Path) -> str:
    return name_of(tiny_path)


@pytest.fixture
def copy(tiny_path: Path, tmp_path: Path) -> Path:
    """A checkpoint of our own to change."""
    shutil.copytree(tiny_path, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"codec": "int8"},
        {"tenant": "rival"},
        {"namespace": "staging"},
        {"name": "another"},
        {"revision": "v2"},
        {"system": "Slowly, please."},
    ],
    ids=lambda change: next(iter(change)),
)
def test_promise_1_what_is_set_and_changes_an_entry_changes_its_name(
    tiny_path: Path, before: str, change: dict[str, str]
) -> None:
    assert name_of(tiny_path, **change) != before  # type: ignore[arg-type]


def edit(file: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("resample", 2),
        ("image_mean", [0.25, 0.5, 0.75]),
        ("image_std", [0.25, 0.5, 0.75]),
        ("rescale_factor", 0.01),
        ("do_normalize", False),
        ("do_rescale", False),
        ("min_pixels", 64 * 28 * 28),
        ("max_pixels", 512 * 28 * 28),
    ],
)
def test_promise_1_every_setting_of_the_processor_that_changes_pixels_changes_the_name(
    copy: Path, before: str, setting: str, value: object
) -> None:
    edit(copy / "preprocessor_config.json", lambda config: config.update({setting: value}))
    assert name_of(copy) != before


def test_promise_1_the_rotation_is_part_of_the_name(copy: Path, before: str) -> None:
    def turn(config: dict[str, object]) -> None:
        text = config.get("text_config", config)
        assert isinstance(text, dict)
        text["rope_parameters"] = {**text["rope_parameters"], "rope_theta": 12345.0}

    edit(copy / "config.json", turn)
    assert name_of(copy) != before


def test_promise_1_where_the_checkpoint_lies_and_how_it_is_run_change_nothing(
    copy: Path, before: str
) -> None:
    assert name_of(copy, threads=1) == before
