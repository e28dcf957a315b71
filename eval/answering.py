"""Whole greedy answers of any served checkpoint, under any policy, with entries kept between questions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig

from engine.families.base import Family
from engine.families.checkpoint import Checkpoint
from engine.families.known import family_of
from engine.messages import Message
from engine.passes.compile import compile_image
from engine.passes.decode import Decoder, decode_step
from engine.passes.forward import Work
from engine.passes.kv import KVPool
from engine.passes.refresh import Prefill, slots_needed
from engine.policies.base import Policy
from engine.prompt.chat import ChatPrompt
from engine.prompt.layout import PromptLayout
from store.records.entry import ImageKV

# Entries in memory at a time: a document's pages are asked about one question after the other.
MOST_ENTRIES = 64


@dataclass(slots=True)
class Answerer:
    """A loaded checkpoint. Not for a service: one request at a time, entries in memory only."""

    family: Family
    chat: ChatPrompt
    pool: KVPool
    _entries: dict[bytes, ImageKV] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: str) -> Answerer:
        architecture = (AutoConfig.from_pretrained(folder).architectures or ["none"])[0]
        checkpoint = Checkpoint(folder, dtype, device)
        family = family_of(architecture).load(checkpoint)
        chat = ChatPrompt(checkpoint.tokenizer, family.image_token)
        return cls(family, chat, KVPool(family.shape, family.dtype, family.device))

    def answer(
        self,
        messages: Sequence[Message],
        pictures: Sequence[np.ndarray],
        policy: Policy,
        ratio: float,
        tokens: int,
    ) -> str:
        """`pictures` upright RGB uint8 [height, width, 3], in the order that the messages number them."""
        shapes = [self.family.span(p.shape[1], p.shape[0]) for p in pictures]
        layout = self.chat.layout(messages, shapes, policy.question)
        entries = [self._entry(pictures[span.image]) for span in layout.spans]
        kv = self.pool.take(max(slots_needed(layout), layout.length + tokens))
        decoder = Decoder(self.pool, kv, layout.length, layout.next_position, layout.length + tokens)
        try:
            features = [entry.features.to(self.family.device) for entry in entries]
            prefill = Prefill(self.family, kv, layout, features, Work())
            found = prefill.reuse(entries, policy, ratio) if policy.uses_store else prefill.full()
            ids = self._decode(decoder, found.logits, tokens)
        finally:
            self.pool.give_back(decoder.kv)
        text: str = self.chat.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def layout(self, messages: Sequence[Message], pictures: Sequence[np.ndarray]) -> PromptLayout:
        return self.chat.layout(messages, [self.family.span(p.shape[1], p.shape[0]) for p in pictures])

    def _decode(self, decoder: Decoder, logits: torch.Tensor, tokens: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < tokens:
            token = int(logits.argmax())
            if token in self.family.stop_tokens:
                break
            ids.append(token)
            logits = decode_step(self.family, [decoder], [token], [Work()])[0]
        return ids

    def _entry(self, picture: np.ndarray) -> ImageKV:
        key = hashlib.sha256(picture.tobytes() + repr(picture.shape).encode()).digest()
        if key not in self._entries:
            if len(self._entries) >= MOST_ENTRIES:
                self._entries.pop(next(iter(self._entries)))
            features = self.family.encode(picture)
            shape = self.family.span(picture.shape[1], picture.shape[0])
            self._entries[key] = compile_image(
                self.family, self.pool, self.chat.prefix_ids, features, shape, Work()
            )
        return self._entries[key]
