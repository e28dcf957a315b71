"""The decoder that the families share: Llama, Qwen2, Qwen3 and their kin, layer by layer.

The decoder's modules are called one by one (norms, projections, MLP are the checkpoint's own), so that a pass may run
any subset of rows, stop at any layer, and see keys before RoPE. Numerics follow the stock implementations of
transformers 5.24; the family contract tests hold the two together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F

from engine.errors import UnsupportedModel
from engine.families.base import ModelShape, Projection, Rope

# Decoders whose layer is norm, attention, norm, MLP with two residuals and nothing else: what `_Layer` computes.
DECODERS: Final = frozenset(
    {"llama", "qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text", "qwen3_vl_moe_text"}
)
# Rotations that change with the length of the prompt: a stored key could not be turned to its new place.
MOVING_ROPES: Final = frozenset({"dynamic", "longrope"})


class Decoder:
    """The text side of a family (see `engine.families.base.Family`). `model` is the whole checkpoint, `decoder` its
    language model, `axes` how many positions a row has (3: M-RoPE; 1: the usual one)."""

    def __init__(self, model: Any, decoder: Any, axes: int) -> None:
        text = decoder.config
        _check(text)
        self._model, self._decoder, self._axes = model, decoder, axes
        self._head = model.lm_head
        self._layers = [_Layer(block) for block in decoder.layers]
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.image_token: int = model.config.image_token_id
        self.levels = 1
        self.max_context: int = text.max_position_embeddings
        self.stop_tokens = frozenset(_as_tuple(model.generation_config.eos_token_id))
        self.shape = ModelShape(
            text.num_hidden_layers,
            text.hidden_size,
            text.intermediate_size,
            text.num_attention_heads,
            text.num_key_value_heads,
            getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            text.vocab_size,
        )
        kind = "mrope" if axes == 3 else "rope"
        self.rope_name = f"{kind}:{json.dumps(text.rope_parameters, sort_keys=True, default=str)}"

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._decoder.embed_tokens(ids)
        return embedded

    def rope(self, positions: torch.Tensor) -> Rope:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        placed = positions.to(self.device)
        cos, sin = self._decoder.rotary_emb(like, placed[:, None] if self._axes == 3 else placed[:1])
        return Rope(cos[0], sin[0])

    def project(self, layer: int, hidden: torch.Tensor) -> Projection:
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        weights = self._layers[layer]
        queries, keys, values = torch.split(self._by_head(weights.qkv(hidden)), [heads, kv_heads, kv_heads])
        return Projection(weights.query_norm(queries), weights.key_norm(keys), values)

    def project_kv(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = self._layers[layer]
        keys, values = self._by_head(weights.kv(hidden)).chunk(2)
        return weights.key_norm(keys), values

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

    def _stock(self, ids: np.ndarray, **inputs: Any) -> torch.Tensor:
        """Last row's logits [vocab] by the library's own forward."""
        tokens = torch.as_tensor(ids, device=self.device)[None]
        output = self._model(input_ids=tokens, use_cache=False, **inputs)
        logits: torch.Tensor = output.logits[0, -1].float()
        return logits

    def _rows_with_features(self, ids: np.ndarray, features: torch.Tensor) -> torch.Tensor:
        """Input embeddings [1, rows, hidden] of a span whose visual rows are `features` [visual, hidden]."""
        tokens = torch.as_tensor(ids, device=self.device)
        rows = self.embed(tokens).clone()
        rows[tokens == self.image_token] = features.to(rows.dtype)
        return rows[None]

    def _by_head(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(flat.shape[0], -1, self.shape.head_dim).transpose(0, 1)


def describe(processor: Any, names: Sequence[str], **more: object) -> str:
    """Every setting of an image processor that changes pixels or counts (`names`), and none that does not (faults A5
    and A6): its part of the key."""
    settings = {name: _plain(getattr(processor, name, None)) for name in names}
    return type(processor).__name__ + json.dumps(settings | more, sort_keys=True, default=str)


def _plain(value: object) -> object:
    """A size as the edges that it sets."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {name: edge for name, edge in asdict(value).items() if edge is not None}


def _check(text: Any) -> None:
    if text.model_type not in DECODERS:
        raise UnsupportedModel(
            f"a decoder of type {text.model_type}: served are {', '.join(sorted(DECODERS))}, whose layers can be run "
            "for any rows"
        )
    other = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if other:
        raise UnsupportedModel(f"a decoder with {sorted(other)}: only full attention can be refreshed")
    kind = (text.rope_parameters or {}).get("rope_type", "default")
    if kind in MOVING_ROPES:
        raise UnsupportedModel(
            f"a rotation of type {kind}: it changes with the prompt's length, so stored keys cannot be turned"
        )


def _as_tuple(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


class _Layer:
    """One decoder layer's arithmetic with as few calls as there can be: projections that read the same rows are one
    matrix. The checkpoint's own modules keep working, their weights become views of it."""

    def __init__(self, block: Any) -> None:
        attention = block.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._qkv = _joined(projections, "weight")
        self._qkv_bias = _joined(projections, "bias") if attention.q_proj.bias is not None else None
        self._queries = attention.q_proj.weight.shape[0]
        self._out, self._out_bias = attention.o_proj.weight, attention.o_proj.bias
        self._norms = tuple(getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        self._before, self._after = block.input_layernorm, block.post_attention_layernorm
        self._mlp = _GatedMLP(block.mlp) if hasattr(block.mlp, "gate_proj") else _Experts(block.mlp)

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(_norm(self._before, hidden), self._qkv, self._qkv_bias)

    def kv(self, hidden: torch.Tensor) -> torch.Tensor:
        first, bias = self._queries, self._qkv_bias
        return F.linear(
            _norm(self._before, hidden), self._qkv[first:], None if bias is None else bias[first:]
        )

    def query_norm(self, queries: torch.Tensor) -> torch.Tensor:
        return queries if self._norms[0] is None else _norm(self._norms[0], queries)

    def key_norm(self, keys: torch.Tensor) -> torch.Tensor:
        return keys if self._norms[1] is None else _norm(self._norms[1], keys)

    def output(self, attended: torch.Tensor) -> torch.Tensor:
        return F.linear(attended, self._out, self._out_bias)

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._mlp(_norm(self._after, hidden))


class _GatedMLP:
    def __init__(self, mlp: Any) -> None:
        self._gate_up = _joined((mlp.gate_proj, mlp.up_proj), "weight")
        self._gate_up_bias = (
            _joined((mlp.gate_proj, mlp.up_proj), "bias") if mlp.gate_proj.bias is not None else None
        )
        self._act, self._down = mlp.act_fn, mlp.down_proj

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(hidden, self._gate_up, self._gate_up_bias).chunk(2, dim=-1)
        return F.linear(self._act(gate) * up, self._down.weight, self._down.bias)


class _Experts:
    """A sparse MLP as the checkpoint has it: each row goes to its own experts, so any rows may be run."""

    def __init__(self, mlp: Any) -> None:
        self._block = mlp

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self._block(hidden[None])[0]
        return mixed


def _joined(modules: Sequence[Any], name: str) -> torch.Tensor:
    """The modules' parameters of that name as one tensor, of which they become views: no memory is taken twice."""
    parts = [getattr(module, name) for module in modules]
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
        part.data = view
    return whole


def _norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """As `Qwen2RMSNorm` and its kin: in float32, rounded to the model's dtype, then scaled."""
    size = (hidden.shape[-1],)
    scaled: torch.Tensor = norm.weight * F.rms_norm(hidden.float(), size, eps=norm.variance_epsilon).to(
        hidden.dtype
    )
    return scaled
