"""Which codec, device and KV budget settings turn into."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.serving.build import kv_budget, start_worker
from engine.serving.device import pick_device
from engine.serving.load import load_runtime, weights_fingerprint
from engine.settings import Limits, ModelSettings
from store.open import open_store
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
