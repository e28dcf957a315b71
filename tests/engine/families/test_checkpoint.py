"""What is found wrong with a checkpoint before anything of it is loaded, and what is read of one in pieces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration

from engine.errors import UnsupportedModel
from engine.families.checkpoint import Checkpoint
from engine.families.qwen_vl import Qwen25VL
from engine.serving.load import weights_fingerprint

PLENTY = 1 << 40


@pytest.fixture
def folder(tiny_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path, tmp_path / "model"))


def change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def of(folder: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    return Checkpoint(folder, dtype, "cpu")


def test_a_sound_checkpoint_passes(folder: Path) -> None:
    of(folder).check(PLENTY)


def test_weights_in_another_format_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="safetensors file"):
        of(folder).check(PLENTY)


def test_a_quantised_checkpoint_is_refused_by_its_method(folder: Path) -> None:
    change(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(
        UnsupportedModel, match=r"quantised \(gptq\).*use the checkpoint that it was made from"
    ):
        of(folder).check(PLENTY)


def test_weights_that_do_not_fit_are_refused_with_what_they_need(folder: Path) -> None:
    need = sum(weight.numel() for weight in load_file(folder / "model.safetensors").values()) * 4
    of(folder).check(need)
    of(folder, torch.bfloat16).check(need // 2)
    with pytest.raises(UnsupportedModel, match=r"GiB as float32 and cpu has 0\.0 GiB free"):
        of(folder).check(need - 1)


def test_the_processor_s_template_is_read_where_the_tokenizer_has_none(folder: Path) -> None:
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UnsupportedModel, match="no chat template"):
        _ = of(folder).tokenizer
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert of(folder).tokenizer.chat_template == template


def test_weights_in_several_files_are_one_model(folder: Path, tmp_path: Path) -> None:
    whole = Qwen25VL.load(of(folder))
    pieces = tmp_path / "pieces"
    Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).save_pretrained(pieces, max_shard_size="100KB")
    for file in folder.iterdir():
        if file.name not in ("model.safetensors", "config.json"):
            shutil.copy(file, pieces)
    assert len(list(pieces.glob("*.safetensors"))) > 1
    of(pieces).check(PLENTY)
    loaded = Qwen25VL.load(of(pieces))
    ids = torch.arange(5)
    assert torch.equal(whole.embed(ids), loaded.embed(ids))
    before = weights_fingerprint(pieces)
    last = max(pieces.glob("*.safetensors"))
    save_file({name: weight + 1 for name, weight in load_file(last).items()}, last, metadata={"format": "pt"})
    assert weights_fingerprint(pieces) != before
