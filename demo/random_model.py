"""Random-weight Qwen2.5-VL checkpoints of any size, made on the spot, with the tokenizer of the model that ships.

They say nothing sensible; they show what a model of that size costs. Used by the demo's last part, the benchmarks and
the tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

PATCH = 14
MERGE = 2
SHIPPED = Path(__file__).parent.parent / "models" / "page-reader"


@dataclass(frozen=True, slots=True)
class RandomShape:
    """Sizes of a random model. `max_pixels` bounds an image's visual tokens (one token is 28 x 28 pixels)."""

    hidden: int = 512
    intermediate: int = 1408
    layers: int = 12
    heads: int = 8
    kv_heads: int = 2
    vision_hidden: int = 128
    vision_layers: int = 2
    context: int = 32768
    max_pixels: int = 28 * 28 * 4096


MID_SIZE = RandomShape()
TINY = RandomShape(hidden=64, intermediate=96, layers=3, heads=4, kv_heads=2, vision_hidden=32, vision_layers=1, context=4096)


def write_random_model(folder: Path, shape: RandomShape, seed: int = 0) -> Path:
    """Write a checkpoint that `from_pretrained` loads; returns `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(_config(shape, tokenizer)).eval()
    with torch.no_grad():
        # The stock initialisation (std 0.02) gives attention that is all but uniform; this one has contrast.
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "embed_tokens" not in name:
                weight.normal_(0, weight[0].numel() ** -0.5)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_processor(shape), indent=2))
    return folder


def _config(shape: RandomShape, tokenizer: object) -> Qwen2_5_VLConfig:
    def token(text: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(text))  # type: ignore[attr-defined]

    half = shape.hidden // shape.heads // 2
    time = half // 4
    rows = (half - time) // 2
    text_config = dict(
        vocab_size=len(tokenizer),  # type: ignore[arg-type]
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [time, rows, half - time - rows],
        },
        bos_token_id=None,
        eos_token_id=token("<|im_end|>"),
        tie_word_embeddings=True,
    )
    vision_config = dict(
        depth=shape.vision_layers,
        hidden_size=shape.vision_hidden,
        intermediate_size=2 * shape.vision_hidden,
        num_heads=max(1, shape.vision_hidden // 32),
        patch_size=PATCH,
        spatial_merge_size=MERGE,
        temporal_patch_size=2,
        window_size=112,
        out_hidden_size=shape.hidden,
        fullatt_block_indexes=[shape.vision_layers - 1],
    )
    return Qwen2_5_VLConfig(
        text_config=text_config,
        vision_config=vision_config,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def _processor(shape: RandomShape) -> dict[str, object]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 28 * 28,
        "max_pixels": shape.max_pixels,
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
