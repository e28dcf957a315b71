"""Questions about synthetic pages as prompts of the engine, drawn from a seed, the same for every policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from demo.pages import MAX_PAGES, render
from demo.questions import Example, make_example
from engine.compile import compile_image
from engine.families.qwen2_5_vl import Qwen25VL
from engine.forward import Work
from engine.kv import KVPool
from engine.layout import Query
from engine.messages import ImagePart, Message, TextPart
from engine.prompt import ChatPrompt
from eval.trial import Prompt

SHIPPED = Path(__file__).parent.parent / "models" / "page-reader"
FEWEST_PAGES = 2


@dataclass(frozen=True, slots=True)
class PageReader:
    """The shipped model and what prompts need of it."""

    family: Qwen25VL
    chat: ChatPrompt
    pool: KVPool

    @classmethod
    def load(cls, folder: Path = SHIPPED) -> PageReader:
        family = Qwen25VL.load(str(folder), None, torch.float32, "cpu")
        chat = ChatPrompt(AutoTokenizer.from_pretrained(folder), family.image_token)
        return cls(family, chat, KVPool(family.shape, family.dtype, family.device))

    def prompt(self, example: Example, foreign: str) -> Prompt:
        """`foreign` is the question of another prompt, for the control that scores with it."""
        messages = conversation(example)
        pictures = [render(page) for page in example.pages]
        grids = [self.family.grid(p.shape[1], p.shape[0]) for p in pictures]
        layout = self.chat.layout(messages, grids)
        features = [self.family.encode(picture) for picture in pictures]
        entries = tuple(
            compile_image(self.family, self.pool, self.chat.prefix_ids, found, grid, Work())
            for found, grid in zip(features, grids, strict=True)
        )
        order = [span.image for span in layout.spans]
        other: Query = self.chat.layout(messages, grids, foreign).query
        return Prompt(layout, tuple(features[i] for i in order), tuple(entries[i] for i in order), other)

    def first_token(self, answer: str) -> int:
        """Id of the token that a right answer starts with."""
        return self.tokens(answer)[0]

    def answer_tokens(self, answer: str) -> list[int]:
        """What a model that is right says, the end of its turn included."""
        return self.tokens(answer + "<|im_end|>")

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.chat.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def conversation(example: Example) -> list[Message]:
    """The example's messages in the engine's words; page i is image i."""
    found = []
    images = iter(range(len(example.pages)))
    for message in example.messages():
        content = message["content"]
        if isinstance(content, str):
            found.append(Message(message["role"], (TextPart(content),)))
            continue
        parts = [TextPart(p["text"]) if p["type"] == "text" else ImagePart(next(images)) for p in content]
        found.append(Message(message["role"], tuple(parts)))
    return found


def draw(
    kind: str, prompts: range, seed: int, pages: tuple[int, int] = (FEWEST_PAGES, MAX_PAGES)
) -> Iterator[Example]:
    """Examples number `prompts` of a kind: each from its own generator, so that any part can be drawn alone."""
    for number in prompts:
        rng = np.random.default_rng([seed, _code(kind), number])
        yield make_example(rng, kind, int(rng.integers(pages[0], pages[1] + 1)))


def _code(kind: str) -> int:
    return int.from_bytes(kind.encode()[:7], "little")
