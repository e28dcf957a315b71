"""Where a family loads from: a folder of files, the dtype and device to hold them in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors import safe_open

from engine.errors import UnsupportedModel

# Older checkpoints keep the template of their processor beside the tokenizer, which does not look there.
PROCESSOR_TEMPLATE: Final = "chat_template.json"
GIB: Final = 1024**3


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    dtype: torch.dtype
    device: str

    def model(self, name: str) -> Any:
        """The checkpoint as the library's class of that name, for inference only."""
        model = getattr(transformers, name).from_pretrained(
            self.folder, dtype=self.dtype, use_safetensors=True
        )
        return model.to(self.device).eval().requires_grad_(False)

    @cached_property
    def config(self) -> Any:
        return transformers.AutoConfig.from_pretrained(self.folder)

    @cached_property
    def tokenizer(self) -> Any:
        """With the chat template of the checkpoint. Raises `UnsupportedModel` where it has none."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        file = self.folder / PROCESSOR_TEMPLATE
        if tokenizer.chat_template is None and file.is_file():
            tokenizer.chat_template = json.loads(file.read_text())["chat_template"]
        if tokenizer.chat_template is None:
            raise UnsupportedModel(
                "the checkpoint has no chat template (chat_template.jinja): nothing says how to ask it"
            )
        return tokenizer

    def check(self, free_bytes: int) -> None:
        """Raises `UnsupportedModel` for weights that are not there, that are packed, or that `free_bytes` of the device
        do not hold: before anything is loaded."""
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise UnsupportedModel("the checkpoint has no *.safetensors file; others are not read")
        packed = getattr(self.config, "quantization_config", None)
        if packed is not None:
            method = packed.get("quant_method") if isinstance(packed, dict) else packed.quant_method
            raise UnsupportedModel(
                f"the checkpoint is quantised ({getattr(method, 'value', method)}); projections that read the same "
                "rows are joined here, which packed weights do not allow: use the checkpoint that it was made from"
            )
        need = sum(_parameters(file) for file in files) * self.dtype.itemsize
        if need > free_bytes:
            name = str(self.dtype).removeprefix("torch.")
            raise UnsupportedModel(
                f"the weights take {need / GIB:.1f} GiB as {name} and {self.device} has {free_bytes / GIB:.1f} GiB "
                "free: use a smaller checkpoint or dtype, or another device"
            )


def _parameters(file: Path) -> int:
    """Numbers in a safetensors file, by its header alone."""
    total = 0
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            shape = tensors.get_slice(name).get_shape()
            total += int(torch.Size(shape).numel())
    return total
