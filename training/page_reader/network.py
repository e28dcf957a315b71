"""The network under training: initialisation, batched vision tower, and attention that can be watched."""

import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_position_ids

from training.page_reader.batches import Batch, patches
from training.page_reader.files import GRID_PATCHES, MERGE, PAGE_TOKENS, build_config, build_tokenizer

# (layer, head) that learns to look from the first to the second row of each kind of look-up. Heads 0 and 1, and 2
# and 3, share their keys. Nothing but the training loss knows about this plan.
WATCHED: Final = {
    "table": ((0, 0),),
    "key": ((0, 2),),
    "reference": ((0, 3),),
    "source": ((1, 0),),
    "previous": ((1, 2),),
    "mark": ((2, 2),),
    "asked": ((3, 0), (4, 0)),
}
_PATCHES: Final = GRID_PATCHES**2


@dataclass(slots=True)
class Watch:
    """Collects, during one forward pass, how well the watched heads look where they should."""

    looks: dict[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None  # [B, 1, L, L] additive
    losses: dict[str, Tensor] = field(default_factory=dict)

    def see(self, layer: int, query: Tensor, key: Tensor, scaling: float) -> None:
        """query [B, H, L, d] and key [B, H, L, d] of a layer; adds the losses of its watched heads."""
        for name, heads in WATCHED.items():
            rows = self.looks.get(name)
            if rows is None or not len(rows):
                continue
            for watched, head in heads:
                if watched == layer and self.mask is not None:
                    logits = torch.matmul(query[:, head], key[:, head].transpose(1, 2)) * scaling
                    logits = (logits + self.mask[:, 0])[rows[:, 0], rows[:, 1]]
                    self.losses[f"{name}{layer}"] = F.cross_entropy(logits, rows[:, 2])


WATCH: Final = Watch()


def _watched_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    groups = module.num_key_value_groups
    assert isinstance(groups, int) and isinstance(module.layer_idx, int)
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    WATCH.see(module.layer_idx, query, key, scaling)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("watched", _watched_attention)


def _batched_vision_attention(self: Any, hidden_states: Tensor, *_: Any, **extra: Any) -> Tensor:
    """Same result as the stock attention, for pages of equal size at once instead of one after another."""
    rows = hidden_states.shape[0]
    query, key, value = self.qkv(hidden_states).reshape(rows, 3, self.num_heads, -1).unbind(1)
    query, key = apply_rotary_pos_emb_vision(query, key, *extra["position_embeddings"])
    split = (
        t.reshape(-1, _PATCHES, self.num_heads, t.shape[-1]).transpose(1, 2) for t in (query, key, value)
    )
    query, key, value = split
    out = F.scaled_dot_product_attention(query, key, value)
    return self.proj(out.transpose(1, 2).reshape(rows, -1))  # type: ignore[no-any-return]


def _patch_embedding_as_matmul(self: Any, patch_rows: Tensor) -> Tensor:
    return F.linear(patch_rows, self.proj.weight.flatten(1))


class Network:
    """The model with the entry points that training needs."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.tokenizer = build_tokenizer()
        config = build_config(self.tokenizer)
        self.model = Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
        _initialise(self.model, config.text_config.num_hidden_layers)
        _align_spaced_words(self.model, self.tokenizer.get_vocab())
        self.decoder = self.model.model.language_model
        self.vision = self.model.model.visual
        self.decoder.config._attn_implementation = "watched"
        for block in self.vision.blocks:
            block.attn.forward = types.MethodType(_batched_vision_attention, block.attn)
        embed = self.vision.patch_embed
        embed.forward = types.MethodType(_patch_embedding_as_matmul, embed)

    def features(self, pictures: Tensor) -> Tensor:
        """[M, 96, 96, 3] uint8 -> [M * 36, hidden] visual embeddings."""
        count = pictures.shape[0]
        grid = torch.tensor([[1, GRID_PATCHES, GRID_PATCHES]])
        positions = get_vision_position_ids(grid, MERGE)
        out = self.vision(
            patches(pictures),
            grid_thw=grid.expand(count, 3),
            position_ids=positions.repeat(count, 1),
            window_index=torch.arange(count * PAGE_TOKENS),
            cu_window_seqlens=torch.arange(0, count + 1, dtype=torch.int32) * _PATCHES,
        )
        return out.pooler_output  # type: ignore[no-any-return]

    def forward(self, batch: Batch, image_pad: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns visual embeddings [M * 36, h], final hidden states [B, L, h], losses of the watched heads."""
        features = self.features(batch.pictures)
        embeddings = self.decoder.embed_tokens(batch.ids)
        visual = (batch.ids == image_pad).unsqueeze(-1)
        embeddings = embeddings.masked_scatter(visual, features)
        mask = torch.zeros(1).masked_fill(~batch.mask(), float("-inf"))
        WATCH.looks, WATCH.mask, WATCH.losses = batch.looks, mask, {}
        hidden = self.decoder(
            inputs_embeds=embeddings,
            position_ids=batch.positions,
            attention_mask={"full_attention": mask},
            use_cache=False,
        ).last_hidden_state
        return features, hidden, dict(WATCH.losses)

    def save(self, folder: Path) -> None:
        """Write the weights in the standard format; a reader never sees half a file."""
        staging = folder.with_name(folder.name + ".part")
        self.model.save_pretrained(staging)
        weights = staging / "model.safetensors"
        weights.chmod(0o644)
        weights.replace(folder / "model.safetensors")
        for file in staging.iterdir():
            file.unlink()
        staging.rmdir()


@torch.no_grad()
def _initialise(model: nn.Module, layers: int) -> None:
    """Normal weights of standard deviation fan_in^-0.5; smaller at the end of each residual branch."""
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue
        fan_in = parameter.shape[1] if "embed_tokens" in name else parameter[0].numel()
        scale = (2 * layers) ** -0.5 if "o_proj" in name or "down_proj" in name else 1.0
        parameter.normal_(0, scale * fan_in**-0.5)


@torch.no_grad()
def _align_spaced_words(model: Any, vocab: dict[str, int]) -> None:
    """Start " four" at the embedding of "four" plus a direction that all spaced words share."""
    table = model.get_input_embeddings().weight
    space = table[vocab["Ġ"]]
    for token, row in vocab.items():
        if token.startswith("Ġ") and token[1:] in vocab:
            table[row] = (table[vocab[token[1:]]] + 0.5 * space) / 1.25**0.5
