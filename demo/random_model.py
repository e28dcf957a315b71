"""Random-weight Qwen2.5-VL checkpoints of any size, made on the spot, with the tokenizer of the model that ships.

They say nothing sensible; they show what a model of that size costs. Used by the demo's last part, the benchmarks and
the tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging

PATCH = 14
MERGE = 2
# One visual token stands for that many pixels in each direction.
TOKEN_EDGE = PATCH * MERGE
SHIPPED = Path(__file__).parent.parent / "models" / "page-reader"


@dataclass(frozen=True, slots=True)
class RandomShape:
    """Sizes of a random model. `max_pixels` bounds an image's visual tokens (one token is 28 x 28 pixels); of the
    vision tower's layers every `vision_full_every`-th attends beyond its window, and the last one."""

    hidden: int = 512
    intermediate: int = 1408
    layers: int = 12
    heads: int = 8
    kv_heads: int = 2
    vision_hidden: int = 128
    vision_intermediate: int = 256
    vision_layers: int = 2
    vision_heads: int = 4
    vision_full_every: int = 8
    context: int = 32768
    max_pixels: int = TOKEN_EDGE**2 * 4096


MID_SIZE = RandomShape()
TINY = RandomShape(
    hidden=64,
    intermediate=96,
    layers=3,
    heads=4,
    kv_heads=2,
    vision_hidden=32,
    vision_intermediate=64,
    vision_layers=1,
    vision_heads=1,
    context=4096,
)
# Qwen2.5-VL-3B but for its vocabulary, which costs one row of a prefill.
LIKE_3B = RandomShape(
    hidden=2048,
    intermediate=11008,
    layers=36,
    heads=16,
    vision_hidden=1280,
    vision_intermediate=3420,
    vision_layers=32,
    vision_heads=16,
    context=128_000,
)


def write_random_model(
    folder: Path, shape: RandomShape, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Path:
    """Write a checkpoint of `dtype` that `from_pretrained` loads, its weights drawn on `device`; returns `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    torch.manual_seed(seed)
    logging.disable_progress_bar()
    with torch.device(device):
        model: Any = Qwen2_5_VLForConditionalGeneration._from_config(
            _config(shape, tokenizer), dtype=dtype
        ).eval()
    return save_random(model, tokenizer, _processor(shape), folder)


def save_random(model: Any, tokenizer: Any, processor: dict[str, object], folder: Path) -> Path:
    """Draw the weights of `model` anew and write it as a checkpoint; `processor` are the settings for its pictures."""
    with torch.no_grad():
        # The stock initialisation (std 0.02) gives attention that is all but uniform; this one has contrast.
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "embed_tokens" not in name:
                weight.normal_(0, weight[0].numel() ** -0.5)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2))
    return folder


def _config(shape: RandomShape, tokenizer: Any) -> Qwen2_5_VLConfig:
    def token(text: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(text))

    text_config = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": _mrope(shape)},
        "bos_token_id": None,
        "eos_token_id": token("<|im_end|>"),
        "tie_word_embeddings": True,
    }
    every, last = shape.vision_full_every, shape.vision_layers - 1
    vision_config = {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_hidden,
        "intermediate_size": shape.vision_intermediate,
        "num_heads": shape.vision_heads,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "window_size": 112,
        "out_hidden_size": shape.hidden,
        "fullatt_block_indexes": sorted({*range(every - 1, shape.vision_layers, every), last}),
    }
    return Qwen2_5_VLConfig(
        text_config=text_config,
        vision_config=vision_config,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def _mrope(shape: RandomShape) -> list[int]:
    """How the rotated half of a head is shared out: a quarter to time, the rest to rows and columns."""
    half = shape.hidden // shape.heads // 2
    time = half // 4
    rows = (half - time) // 2
    return [time, rows, half - time - rows]


def _processor(shape: RandomShape) -> dict[str, object]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": TOKEN_EDGE**2,
        "max_pixels": shape.max_pixels,
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
