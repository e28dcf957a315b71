"""Random-weight checkpoints of every family, made on the spot, with the tokenizer of the model that ships and the marks
that the family's own tokenizer would have. They say nothing sensible; they show that a class is served, and its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer
from transformers.utils import logging

from demo.random_model import SHIPPED, save_random

QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"
SMOLVLM_MARKS = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the decoder and of the vision tower. `head_dim` need not be hidden / heads."""

    hidden: int = 64
    intermediate: int = 96
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vision_hidden: int = 32
    vision_layers: int = 2
    context: int = 4096
    tile: int = 56
    patch: int = 14


@dataclass(frozen=True, slots=True)
class Kind:
    """How a family's checkpoint is made: its configuration, its processor's file, the tokens that it adds to the
    tokenizer, and what stands for an image in a conversation."""

    config: Callable[[Sizes, Any], Any]
    processor: Callable[[Sizes], dict[str, object]]
    tokens: tuple[str, ...] = ()
    placeholder: str = QWEN_MARK


def write_random_family(folder: Path, architecture: str, sizes: Sizes = Sizes(), seed: int = 0) -> Path:
    """Write a float32 checkpoint of `architecture` that `from_pretrained` loads; returns `folder`."""
    kind = KINDS[architecture]
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    tokenizer.add_special_tokens({"additional_special_tokens": list(kind.tokens)})
    tokenizer.chat_template = tokenizer.chat_template.replace(QWEN_MARK, kind.placeholder)
    torch.manual_seed(seed)
    logging.disable_progress_bar()
    model = getattr(transformers, architecture)._from_config(
        kind.config(sizes, tokenizer), dtype=torch.float32
    )
    return save_random(model, tokenizer, kind.processor(sizes), folder)


def _text(sizes: Sizes, tokenizer: Any, **more: object) -> dict[str, object]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "max_position_embeddings": sizes.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
        **more,
    }


def _qwen_tokens(tokenizer: Any) -> dict[str, int]:
    marks = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    marks |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    return {f"{name}_token_id": tokenizer.convert_tokens_to_ids(mark) for name, mark in marks.items()}


def _mrope(sizes: Sizes, head_dim: int, **more: object) -> dict[str, object]:
    """A quarter of the rotated half of a head to time, the rest to rows and columns."""
    half = head_dim // 2
    time = half // 4
    rows = (half - time) // 2
    sections = [time, rows, half - time - rows]
    return {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections, **more}


def _qwen2_vl(sizes: Sizes, tokenizer: Any) -> Any:
    vision = {
        "depth": sizes.vision_layers,
        "embed_dim": sizes.vision_hidden,
        "hidden_size": sizes.hidden,
        "num_heads": 2,
        "patch_size": sizes.patch,
    }
    text = _text(sizes, tokenizer, rope_parameters=_mrope(sizes, sizes.hidden // sizes.heads))
    return transformers.Qwen2VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, **_qwen_tokens(tokenizer)
    )


def _qwen2_5_vl(sizes: Sizes, tokenizer: Any) -> Any:
    vision = {
        "depth": sizes.vision_layers,
        "hidden_size": sizes.vision_hidden,
        "intermediate_size": 2 * sizes.vision_hidden,
        "out_hidden_size": sizes.hidden,
        "num_heads": 2,
        "patch_size": sizes.patch,
        "fullatt_block_indexes": [sizes.vision_layers - 1],
    }
    text = _text(sizes, tokenizer, rope_parameters=_mrope(sizes, sizes.hidden // sizes.heads))
    return transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, **_qwen_tokens(tokenizer)
    )


def _qwen3_parts(sizes: Sizes, tokenizer: Any) -> dict[str, Any]:
    vision = {
        "depth": sizes.vision_layers,
        "hidden_size": sizes.vision_hidden,
        "intermediate_size": 2 * sizes.vision_hidden,
        "out_hidden_size": sizes.hidden,
        "num_heads": 2,
        "patch_size": sizes.patch,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": list(range(sizes.vision_layers)),
    }
    rope = _mrope(sizes, sizes.head_dim, mrope_interleaved=True)
    text = _text(sizes, tokenizer, head_dim=sizes.head_dim, rope_parameters=rope)
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": True} | _qwen_tokens(
        tokenizer
    )


def _qwen3_vl(sizes: Sizes, tokenizer: Any) -> Any:
    return transformers.Qwen3VLConfig(**_qwen3_parts(sizes, tokenizer))


def _qwen3_vl_moe(sizes: Sizes, tokenizer: Any) -> Any:
    parts = _qwen3_parts(sizes, tokenizer)
    parts["text_config"] |= {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": sizes.intermediate // 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
    }
    return transformers.Qwen3VLMoeConfig(**parts)


def _internvl(sizes: Sizes, tokenizer: Any) -> Any:
    vision = {
        "hidden_size": sizes.vision_hidden,
        "intermediate_size": 2 * sizes.vision_hidden,
        "num_hidden_layers": sizes.vision_layers,
        "num_attention_heads": 2,
        "image_size": [sizes.tile, sizes.tile],
        "patch_size": [sizes.patch, sizes.patch],
    }
    return transformers.InternVLConfig(
        text_config=_text(sizes, tokenizer, model_type="qwen2"),
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        tie_word_embeddings=True,
    )


def _siglip(sizes: Sizes, model_type: str) -> dict[str, object]:
    return {
        "model_type": model_type,
        "hidden_size": sizes.vision_hidden,
        "intermediate_size": 2 * sizes.vision_hidden,
        "num_hidden_layers": sizes.vision_layers,
        "num_attention_heads": 2,
        "image_size": sizes.tile,
        "patch_size": sizes.patch,
    }


def _llava_onevision(sizes: Sizes, tokenizer: Any) -> Any:
    return transformers.LlavaOnevisionConfig(
        text_config=_text(sizes, tokenizer, model_type="qwen2"),
        vision_config={**_siglip(sizes, "siglip_vision_model"), "vision_use_head": False},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        image_grid_pinpoints=_pinpoints(sizes),
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )


def _pinpoints(sizes: Sizes) -> list[list[int]]:
    return [[sizes.tile * rows, sizes.tile * columns] for rows in range(1, 4) for columns in range(1, 4)]


def _smolvlm(config: str) -> Callable[[Sizes, Any], Any]:
    def make(sizes: Sizes, tokenizer: Any) -> Any:
        return getattr(transformers, config)(
            text_config=_text(sizes, tokenizer, model_type="llama", head_dim=sizes.head_dim),
            vision_config=_siglip(sizes, config.removesuffix("Config").lower() + "_vision"),
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
            pad_token_id=tokenizer.pad_token_id,
            scale_factor=2,
            tie_word_embeddings=True,
        )

    return make


def _qwen_pixels(sizes: Sizes) -> dict[str, object]:
    edge = 2 * sizes.patch
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": edge**2,
        "max_pixels": edge**2 * 4096,
        "patch_size": sizes.patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
    }


def _internvl_pixels(sizes: Sizes) -> dict[str, object]:
    size = {"height": sizes.tile, "width": sizes.tile}
    return {"image_processor_type": "GotOcr2ImageProcessor", "size": size, "min_patches": 1, "max_patches": 6}


def _llava_pixels(sizes: Sizes) -> dict[str, object]:
    return {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "size": {"height": sizes.tile, "width": sizes.tile},
        "image_grid_pinpoints": _pinpoints(sizes),
    }


def _smolvlm_pixels(kind: str) -> Callable[[Sizes], dict[str, object]]:
    def settings(sizes: Sizes) -> dict[str, object]:
        return {
            "image_processor_type": f"{kind}ImageProcessor",
            "size": {"longest_edge": 3 * sizes.tile},
            "max_image_size": {"longest_edge": sizes.tile},
        }

    return settings


KINDS = {
    "Qwen2VLForConditionalGeneration": Kind(_qwen2_vl, _qwen_pixels),
    "Qwen2_5_VLForConditionalGeneration": Kind(_qwen2_5_vl, _qwen_pixels),
    "Qwen3VLForConditionalGeneration": Kind(_qwen3_vl, _qwen_pixels),
    "Qwen3VLMoeForConditionalGeneration": Kind(_qwen3_vl_moe, _qwen_pixels),
    "InternVLForConditionalGeneration": Kind(
        _internvl, _internvl_pixels, ("<img>", "</img>", "<IMG_CONTEXT>"), "<IMG_CONTEXT>\n"
    ),
    "LlavaOnevisionForConditionalGeneration": Kind(
        _llava_onevision, _llava_pixels, ("<image>",), "<image>\n"
    ),
    "SmolVLMForConditionalGeneration": Kind(
        _smolvlm("SmolVLMConfig"), _smolvlm_pixels("SmolVLM"), SMOLVLM_MARKS, "<image>"
    ),
    "Idefics3ForConditionalGeneration": Kind(
        _smolvlm("Idefics3Config"), _smolvlm_pixels("Idefics3"), SMOLVLM_MARKS, "<image>"
    ),
}
