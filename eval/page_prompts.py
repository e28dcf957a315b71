"""Questions about synthetic pages as prompts of the engine, drawn from a seed, the same for every policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from demo.pages import MAX_PAGES, PAGE_PX, Page, render
from demo.questions import Example, make_example
from engine.families.checkpoint import Checkpoint
from engine.families.qwen_vl import Qwen25VL
from engine.families.span import SpanShape
from engine.messages import ImagePart, Message, TextPart
from engine.passes.attention import Causal
from engine.passes.compile import compile_image, value_norms
from engine.passes.forward import Work, run_rows
from engine.passes.kv import KVPool
from engine.passes.rows import PromptRows
from engine.prompt.chat import ChatPrompt
from engine.prompt.layout import Query
from eval.trial import Prompt
from store.records.entry import ImageKV

SHIPPED = Path(__file__).parent.parent / "models" / "page-reader"
FEWEST_PAGES = 2
# What pages may be compiled behind: the chat template, which is what the engine does; the same with an empty picture in
# front; one start token; four of them.
PREFIXES = ("template", "neutral", "bare", "starts")


@dataclass(frozen=True, slots=True)
class PageReader:
    """The shipped model and what prompts need of it. `prefix` names what pages are compiled behind."""

    family: Qwen25VL
    chat: ChatPrompt
    pool: KVPool
    prefix: str

    @classmethod
    def load(cls, folder: Path = SHIPPED, prefix: str = "template") -> PageReader:
        checkpoint = Checkpoint(folder, torch.float32, "cpu")
        family = Qwen25VL.load(checkpoint)
        chat = ChatPrompt(checkpoint.tokenizer, family.image_token)
        return cls(family, chat, KVPool(family.shape, family.dtype, family.device), prefix)

    def prompt(self, example: Example, foreign: str) -> Prompt:
        """`foreign` is the question of another prompt, for the control that scores with it."""
        return self.ask(conversation(example), example.pages, foreign)

    def ask(self, messages: Sequence[Message], pages: Sequence[Page], foreign: str) -> Prompt:
        """A conversation whose image i is `pages[i]`."""
        pictures = [render(page) for page in pages]
        shapes = [self.family.span(p.shape[1], p.shape[0]) for p in pictures]
        layout = self.chat.layout(messages, shapes)
        features = [self.family.encode(picture) for picture in pictures]
        entries = tuple(self._entry(found, shape) for found, shape in zip(features, shapes, strict=True))
        if self.prefix != "template":
            layout = replace(layout, exact=())
        order = [span.image for span in layout.spans]
        other: Query = self.chat.layout(messages, shapes, foreign).query
        return Prompt(layout, tuple(features[i] for i in order), tuple(entries[i] for i in order), other)

    def _entry(self, features: torch.Tensor, span: SpanShape) -> ImageKV:
        start = self.chat.prefix_ids[:1]
        ids = {"template": self.chat.prefix_ids, "bare": start, "starts": 4 * start}
        if self.prefix in ids:
            return compile_image(self.family, self.pool, ids[self.prefix], features, span, Work())
        empty = self.family.encode(np.full((PAGE_PX, PAGE_PX, 3), 255, np.uint8))
        return self._compile_behind(empty, features, span)

    def _compile_behind(self, other: torch.Tensor, features: torch.Tensor, span: SpanShape) -> ImageKV:
        """As `engine.passes.compile` compiles, with another picture of the same size before it."""
        both = (Message("user", (ImagePart(0), ImagePart(1))),)
        layout = self.chat.layout(both, (span, span))
        second, shape = layout.spans[1], self.family.shape
        keys = torch.empty(shape.layers, shape.kv_heads, span.rows, shape.head_dim)
        values = torch.empty_like(keys)

        def capture(layer: int, layer_keys: torch.Tensor, layer_values: torch.Tensor) -> None:
            keys[layer], values[layer] = layer_keys[:, second.start :], layer_values[:, second.start :]

        kv = self.pool.take(second.stop)
        try:
            rows = PromptRows(self.family, layout, (other, features)).at(np.arange(second.stop))
            run_rows(self.family, kv, rows, Causal(second.stop), Work(), capture)
        finally:
            self.pool.give_back(kv)
        return ImageKV(keys, values, features, value_norms(values))

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
