"""Qwen2.5-VL: any checkpoint of `Qwen2_5_VLForConditionalGeneration`, by hub name or local path.

The decoder's modules are called one by one (norms, projections, MLP are the checkpoint's own), so that a pass may run
any subset of rows, stop at any layer, and see keys before RoPE. Numerics follow the stock implementation of
transformers 5.24; the identity tests hold the two together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from engine.errors import InvalidPrompt, UnsupportedModel
from engine.families.base import ModelShape, Projection, Rope
from engine.families.span import SpanShape, grid_span

ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"


class Qwen25VL:
    """A loaded checkpoint. See `engine.families.base.Family` for what each operation means."""

    def __init__(self, model: Any, processor: Qwen2VLImageProcessorPil) -> None:
        text = model.config.text_config
        if set(text.layer_types) != {"full_attention"}:
            raise UnsupportedModel(
                f"a decoder with {sorted(set(text.layer_types))}: only full attention can be refreshed"
            )
        self._model = model
        self._decoder = model.model.language_model
        self._vision = model.model.visual
        self._head = model.lm_head
        self._layers = [_Layer(block) for block in self._decoder.layers]
        self._processor = processor
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.image_token: int = model.config.image_token_id
        self.max_context: int = text.max_position_embeddings
        self.stop_tokens = frozenset(_as_tuple(model.generation_config.eos_token_id))
        head_dim = text.hidden_size // text.num_attention_heads
        self.shape = ModelShape(
            text.num_hidden_layers,
            text.hidden_size,
            text.intermediate_size,
            text.num_attention_heads,
            text.num_key_value_heads,
            head_dim,
            text.vocab_size,
        )
        self.rope_name = "mrope:" + json.dumps(text.rope_parameters, sort_keys=True, default=str)
        self.processor_name = _describe_processor(processor)

    @classmethod
    def load(cls, path: str, revision: str | None, dtype: torch.dtype, device: str) -> Qwen25VL:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            path, revision=revision, dtype=dtype, use_safetensors=True
        )
        model = model.to(device).eval().requires_grad_(False)
        return cls(model, Qwen2VLImageProcessorPil.from_pretrained(path, revision=revision))

    def span(self, width: int, height: int) -> SpanShape:
        factor = self._processor.patch_size * self._processor.merge_size
        size = self._processor.size
        try:
            rows, columns = smart_resize(height, width, factor, size["shortest_edge"], size["longest_edge"])
        except ValueError as error:
            raise InvalidPrompt(
                f"an image of {width} x {height} pixels is too narrow: "
                "the longer side may be at most 200 times the shorter"
            ) from error
        return grid_span(self.image_token, rows // factor, columns // factor)

    def encode(self, pixels: np.ndarray) -> torch.Tensor:
        batch = self._processor(images=[pixels], input_data_format="channels_last", return_tensors="pt")
        patches = batch["pixel_values"].to(self.device, self.dtype)
        output = self._vision(patches, grid_thw=batch["image_grid_thw"].to(self.device))
        features: torch.Tensor = output.pooler_output
        return features[None]

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._decoder.embed_tokens(ids)
        return embedded

    def rope(self, positions: torch.Tensor) -> Rope:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        cos, sin = self._decoder.rotary_emb(like, positions[:, None].to(self.device))
        return Rope(cos[0], sin[0])

    def project(self, layer: int, hidden: torch.Tensor) -> Projection:
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        return Projection(
            *torch.split(self._by_head(self._layers[layer].qkv(hidden)), [heads, kv_heads, kv_heads])
        )

    def project_kv(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._by_head(self._layers[layer].kv(hidden)).chunk(2)
        return keys, values

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        weights = self._layers[layer]
        hidden = hidden + weights.output(attended.transpose(0, 1).reshape(hidden.shape[0], -1))
        return hidden + weights.mlp(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self._head(self._decoder.norm(hidden))
        return scores.float()

    def output_projection(self, layer: int) -> torch.Tensor:
        weight: torch.Tensor = self._decoder.layers[layer].self_attn.o_proj.weight
        return weight

    def stock_logits(self, ids: np.ndarray, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        """The last row's logits [vocab] by transformers' own forward, for the start-up gate and the identity tests.

        ids [slots] with every visual token in place, pictures uint8 [height, width, 3] in prompt order.
        """
        batch = self._processor(images=list(pictures), input_data_format="channels_last", return_tensors="pt")
        tokens = torch.as_tensor(ids, device=self.device)[None]
        output = self._model(
            input_ids=tokens,
            pixel_values=batch["pixel_values"].to(self.device, self.dtype),
            image_grid_thw=batch["image_grid_thw"].to(self.device),
            mm_token_type_ids=(tokens == self.image_token).int(),
            use_cache=False,
        )
        logits: torch.Tensor = output.logits[0, -1].float()
        return logits

    def _by_head(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(flat.shape[0], -1, self.shape.head_dim).transpose(0, 1)


def _as_tuple(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _describe_processor(processor: Qwen2VLImageProcessorPil) -> str:
    """Every setting that changes the patches of a still image, and none that does not (faults A5 and A6)."""
    if not processor.do_resize:
        raise UnsupportedModel("a processor that does not resize: visual tokens could not be counted ahead")
    names = (
        "do_normalize",
        "do_rescale",
        "patch_size",
        "merge_size",
        "temporal_patch_size",
        "resample",
        "image_mean",
        "image_std",
        "rescale_factor",
    )
    settings = {name: getattr(processor, name, None) for name in names}
    settings["shortest_edge"] = processor.size["shortest_edge"]
    settings["longest_edge"] = processor.size["longest_edge"]
    return type(processor).__name__ + json.dumps(settings, sort_keys=True, default=str)


class _Layer:
    """One decoder layer's arithmetic with as few calls as there can be: projections that read the same rows are one
    matrix. The checkpoint's own modules keep working, their weights become views of it."""

    def __init__(self, block: Any) -> None:
        attention, mlp = block.self_attn, block.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._qkv = _joined(projections, "weight")
        self._qkv_bias = _joined(projections, "bias")
        self._queries = attention.q_proj.weight.shape[0]
        self._gate_up = _joined((mlp.gate_proj, mlp.up_proj), "weight")
        self._act, self._down = mlp.act_fn, mlp.down_proj.weight
        self._out = attention.o_proj.weight
        self._before, self._after = block.input_layernorm, block.post_attention_layernorm

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(_norm(self._before, hidden), self._qkv, self._qkv_bias)

    def kv(self, hidden: torch.Tensor) -> torch.Tensor:
        first = self._queries
        return F.linear(_norm(self._before, hidden), self._qkv[first:], self._qkv_bias[first:])

    def output(self, attended: torch.Tensor) -> torch.Tensor:
        return F.linear(attended, self._out)

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(_norm(self._after, hidden), self._gate_up).chunk(2, dim=-1)
        return F.linear(self._act(gate) * up, self._down)


def _joined(modules: Sequence[Any], name: str) -> torch.Tensor:
    """The modules' parameters of that name as one tensor, of which they become views: no memory is taken twice."""
    parts = [getattr(module, name) for module in modules]
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
        part.data = view
    return whole


def _norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """As `Qwen2RMSNorm`: in float32, rounded to the model's dtype, then scaled."""
    size = (hidden.shape[-1],)
    scaled: torch.Tensor = norm.weight * F.rms_norm(hidden.float(), size, eps=norm.variance_epsilon).to(
        hidden.dtype
    )
    return scaled
