"""The families that are served, by the class that a checkpoint names, and those that cannot be, with the reason.

A new family is one file and one line here; it then joins the contract tests.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol

from engine.errors import UnsupportedModel
from engine.families.base import Family
from engine.families.checkpoint import Checkpoint

# Files are imported when a checkpoint of theirs is loaded: each brings a model class of the library.
FAMILIES: Final = {
    "Qwen2VLForConditionalGeneration": "qwen_vl.Qwen2VL",
    "Qwen2_5_VLForConditionalGeneration": "qwen_vl.Qwen25VL",
    "Qwen3VLForConditionalGeneration": "qwen_vl.Qwen3VL",
    "Qwen3VLMoeForConditionalGeneration": "qwen_vl.Qwen3VLMoe",
    "InternVLForConditionalGeneration": "internvl.InternVL",
    "LlavaOnevisionForConditionalGeneration": "llava_onevision.LlavaOnevision",
    "SmolVLMForConditionalGeneration": "smolvlm.SmolVLM",
    "Idefics3ForConditionalGeneration": "smolvlm.Idefics3",
}
_BOTH_WAYS: Final = (
    "its image tokens see one another in both directions, so none can be computed without the rest"
)
_BESIDE: Final = "its images are read by cross-attention, they have no rows in the prompt that could be kept"
_WINDOWS: Final = "its sliding-window layers do not see an image from everywhere behind it"
_STATES: Final = "its linear-attention layers keep a running state, which rows computed anew cannot correct"
REFUSED: Final = {
    "MllamaForConditionalGeneration": _BESIDE,
    "PaliGemmaForConditionalGeneration": _BOTH_WAYS,
    "Gemma3ForConditionalGeneration": f"{_BOTH_WAYS}; and {_WINDOWS}",
    "Gemma3nForConditionalGeneration": _WINDOWS,
    "Llama4ForConditionalGeneration": "its layers attend in chunks of the prompt, so that a place decides what is seen",
    "Qwen3_5ForConditionalGeneration": _STATES,
    "Qwen3_5MoeForConditionalGeneration": _STATES,
}


class Loader(Protocol):
    def load(self, checkpoint: Checkpoint) -> Family: ...


def family_of(architecture: str) -> Loader:
    """Raises `UnsupportedModel` for an architecture that is not served, with the reason where it never could be."""
    if architecture in REFUSED:
        raise UnsupportedModel(f"a {architecture} cannot be served: {REFUSED[architecture]}")
    if architecture not in FAMILIES:
        raise UnsupportedModel(f"the checkpoint is a {architecture}; served are {', '.join(FAMILIES)}")
    module, name = FAMILIES[architecture].split(".")
    family: Loader = getattr(importlib.import_module(f"engine.families.{module}"), name)
    return family
