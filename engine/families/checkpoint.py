"""Where a family loads from: a folder of files, the dtype and device to hold them in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers


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
        return transformers.AutoTokenizer.from_pretrained(self.folder)
