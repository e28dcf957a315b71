"""Which codec, device and KV budget settings turn into."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.errors import EngineError, InternalError, StoreFailed, UnsupportedModel
from engine.serving.build import kv_budget, start_worker
from engine.serving.device import host_bytes, pick_device
from engine.serving.load import load_runtime, weights_fingerprint
from engine.settings import Limits, ModelSettings
from store.errors import InvalidSettings, StoreClosed
from store.open import Store, open_store
from store.records.entry import ImageKV
from store.records.keys import ModelKey, VisualKey
from store.settings import StoreSettings


def test_auto_codec_is_raw_on_a_cpu_and_part_of_the_key(tiny_path: Path) -> None:
    started = start_worker(ModelSettings(str(tiny_path), device="cpu"), StoreSettings(codec="auto"), Limits())
    try:
        assert started.store.entries.codec_name == "raw"
        assert started.worker.runtime.model_key.codec == "raw"
        assert started.worker.status().ready
    finally:
        started.worker.stop(0)
        started.store.entries.close()


def test_kv_budget_is_a_share_of_host_memory_on_a_cpu() -> None:
    assert 0 < kv_budget(torch.device("cpu")) < 1 << 50
    assert pick_device("cpu") == "cpu" and pick_device("auto") in ("cpu", "cuda")


def test_c8_changed_weights_are_another_model(tiny_path: Path, tmp_path: Path) -> None:
    for file in tiny_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert weights_fingerprint(tmp_path) == weights_fingerprint(tiny_path)
    weights = tmp_path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert weights_fingerprint(tmp_path) != weights_fingerprint(tiny_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "./nowhere"}, "neither a folder nor a hub name"),
        ({"dtype": "int8"}, "no floating-point dtype"),
    ],
)
def test_settings_that_cannot_be_served_say_why(
    tiny_path: Path, changes: dict[str, str], message: str
) -> None:
    store = open_store(StoreSettings())
    with pytest.raises(UnsupportedModel, match=message):
        load_runtime(ModelSettings(**{"path": str(tiny_path), "device": "cpu", **changes}), store, "raw")
    store.entries.close()


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    store = open_store(StoreSettings())
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM; served are Qwen2VL"):
        load_runtime(ModelSettings(str(tmp_path)), store, "raw")
    store.entries.close()


def edited(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


PROCESSOR, CONFIG = "preprocessor_config.json", "config.json"
Change = Callable[[Path], dict[str, object]]
# What an entry depends on: each as an edit of the checkpoint, or as settings.
DEPENDS_ON: dict[str, Change] = {
    "the dtype": lambda folder: {"dtype": "bfloat16"},
    "the system prompt": lambda folder: {"system": "Please read."},
    "the namespace": lambda folder: {"namespace": "other"},
    "the model's name": lambda folder: {"name": "other"},
    "the revision": lambda folder: {"revision": "other"},
    "the resampling filter": lambda folder: edited(folder / PROCESSOR, resample=2) or {},
    "the mean": lambda folder: edited(folder / PROCESSOR, image_mean=[0.1, 0.2, 0.3]) or {},
    "the deviation": lambda folder: edited(folder / PROCESSOR, image_std=[0.1, 0.2, 0.3]) or {},
    "whether pixels are normalised": lambda folder: edited(folder / PROCESSOR, do_normalize=False) or {},
    "the scale of pixels": lambda folder: edited(folder / PROCESSOR, rescale_factor=0.01) or {},
    "the rotation": lambda folder: turned_faster(folder) or {},
    "a setting of the decoder": lambda folder: edited_text(folder, rms_norm_eps=1e-5) or {},
}


def turned_faster(folder: Path) -> None:
    rope = json.loads((folder / CONFIG).read_text())["text_config"]["rope_parameters"]
    edited_text(folder, rope_parameters={**rope, "rope_theta": 5000.0})


def edited_text(folder: Path, **changes: object) -> None:
    text = json.loads((folder / CONFIG).read_text())["text_config"]
    edited(folder / CONFIG, text_config={**text, **changes})


def entry_key(folder: Path, codec: str = "raw", **settings: object) -> str:
    store = open_store(StoreSettings())
    found = load_runtime(ModelSettings(str(folder), device="cpu", **settings), store, codec)  # type: ignore[arg-type]
    store.entries.close()
    return found.key_of("tenant", b"d" * 32, 10, 20).hex


@pytest.fixture(scope="module")
def plain_key(tiny_path: Path) -> str:
    return entry_key(tiny_path, name="tiny")


@pytest.mark.parametrize("what", DEPENDS_ON)
def test_promise_1_all_that_an_entry_depends_on_is_in_its_key(
    plain_key: str, tiny_path: Path, tmp_path: Path, what: str
) -> None:
    folder = Path(shutil.copytree(tiny_path, tmp_path / "model"))
    settings = {"name": "tiny", **DEPENDS_ON[what](folder)}
    assert entry_key(folder, **settings) != plain_key


def test_promise_1_where_a_checkpoint_lies_is_not_in_the_key_and_the_codec_is(
    plain_key: str, tiny_path: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_path, tmp_path / "elsewhere"))
    assert entry_key(folder, name="tiny") == plain_key
    assert entry_key(folder, "int8", name="tiny") != plain_key


FAILURES: dict[str, tuple[Exception, type[EngineError]]] = {
    "of ours": (UnsupportedModel("no such model"), UnsupportedModel),
    "of the store": (InvalidSettings("no such codec"), StoreFailed),
    "of a library": (OSError(28, "No space left on device"), InternalError),
    "of memory": (MemoryError(), InternalError),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("place", ["load_runtime", "kv_budget", "Worker"])
def test_a_start_that_fails_is_an_error_of_ours_and_closes_the_store(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, place: str
) -> None:
    raised, expected = FAILURES[failure]
    opened: list[Store[ImageKV]] = []

    def open_noted(settings: StoreSettings) -> Store[ImageKV]:
        opened.append(open_store(settings))
        return opened[-1]

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr("engine.serving.build.open_store", open_noted)
    if place != "load_runtime":
        monkeypatch.setattr("engine.serving.build.load_runtime", lambda *_: SimpleNamespace(family=CPU))
    monkeypatch.setattr(f"engine.serving.build.{place}", fail)
    with pytest.raises(expected) as error:
        start_worker(ModelSettings(str(tiny_path), device="cpu"), StoreSettings(), Limits())
    assert isinstance(error.value, EngineError) and "/" not in error.value.message
    with pytest.raises(StoreClosed):
        opened[0].entries.fetch(VisualKey("n", "t", MODEL_KEY, b"d" * 32, 1, 1), fail)


CPU = SimpleNamespace(device=torch.device("cpu"))
MODEL_KEY = ModelKey("m", "", "0" * 64, "p", "float32", "raw", (1,), "r")


def test_memory_is_that_of_the_container_where_that_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = host_bytes()
    monkeypatch.setattr(Path, "read_text", lambda path: "1000000\n" if "cgroup" in str(path) else "")
    assert host_bytes() == 1_000_000 < whole
    monkeypatch.setattr(Path, "read_text", lambda path: "max\n")
    assert host_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
