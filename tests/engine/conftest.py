"""A tiny random Qwen2.5-VL with the shipped tokenizer, and the conversations that the engine tests ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from demo.random_model import TINY, write_random_model
from engine.families.checkpoint import Checkpoint
from engine.families.known import family_of
from engine.messages import ImagePart, Message, TextPart
from engine.passes.compile import compile_image
from engine.passes.forward import Work
from engine.passes.kv import KVPool
from engine.passes.refresh import Prefill, Prefilled, slots_needed
from engine.policies.known import make_policy
from engine.prompt.chat import ChatPrompt
from engine.prompt.layout import PromptLayout
from store.records.entry import ImageKV

torch.set_num_threads(1)


@dataclass
class Bench:
    """One loaded model with what a test needs to run prefills on it directly."""

    family: Any
    prompt: ChatPrompt
    pool: KVPool

    def entry(self, pixels: np.ndarray) -> ImageKV:
        shape = self.family.span(pixels.shape[1], pixels.shape[0])
        features = self.family.encode(pixels)
        return compile_image(self.family, self.pool, self.prompt.prefix_ids, features, shape, Work())

    def layout(self, messages: list[Message], images: list[np.ndarray]) -> PromptLayout:
        return self.prompt.layout(messages, [self.family.span(i.shape[1], i.shape[0]) for i in images])

    def prefill(self, layout: PromptLayout, images: list[np.ndarray]) -> Prefill:
        features = [self.family.encode(images[span.image]) for span in layout.spans]
        return Prefill(self.family, self.pool.take(slots_needed(layout)), layout, features, Work())

    def reuse(
        self,
        layout: PromptLayout,
        images: list[np.ndarray],
        ratio: float,
        policy: str = "conduit",
        **options: object,
    ) -> tuple[Prefill, Prefilled]:
        entries = {span.image: self.entry(images[span.image]) for span in layout.spans}
        prefill = self.prefill(layout, images)
        ordered = [entries[span.image] for span in layout.spans]
        return prefill, prefill.reuse(ordered, make_policy(policy, options), ratio)

    def full(self, layout: PromptLayout, images: list[np.ndarray]) -> tuple[Prefill, Prefilled]:
        prefill = self.prefill(layout, images)
        return prefill, prefill.full()


def load_bench(path: Path, dtype: torch.dtype = torch.float32) -> Bench:
    checkpoint = Checkpoint(path, dtype, "cpu")
    family = family_of(checkpoint.config.architectures[0]).load(checkpoint)
    prompt = ChatPrompt(checkpoint.tokenizer, family.image_token)
    return Bench(family, prompt, KVPool(family.shape, family.dtype, family.device))


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("tiny"), TINY)


@pytest.fixture(scope="session")
def bench(tiny_path: Path) -> Bench:
    return load_bench(tiny_path)


@pytest.fixture(scope="session")
def stock(tiny_path: Path) -> Qwen2_5_VLForConditionalGeneration:
    """The library's own model of the same checkpoint: what ours must equal."""
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tiny_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def stock_inputs(bench: Bench, layout: PromptLayout, pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """A laid-out prompt and its pictures, in prompt order, as the library takes them."""
    ids = torch.as_tensor(layout.ids)[None]
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == bench.family.image_token).int()}
    if pictures:
        processor = bench.family._processor
        batch = processor(images=pictures, input_data_format="channels_last", return_tensors="pt")
        inputs |= {"pixel_values": batch["pixel_values"], "image_grid_thw": batch["image_grid_thw"]}
    return inputs


def picture(seed: int, width: int = 168, height: int = 112) -> np.ndarray:
    """A picture of noise: upright RGB uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def user(*parts: str | int) -> Message:
    """A user message: strings are text, integers are images."""
    return Message("user", tuple(TextPart(p) if isinstance(p, str) else ImagePart(p) for p in parts))


def said(role: str, text: str) -> Message:
    return Message(role, (TextPart(text),))  # type: ignore[arg-type]


SHIFTED = [
    said("system", "Read them all, slowly."),
    user(0, "first page, and now ", 1, 2, "What is K on the red page?"),
]
PICTURES = [picture(1), picture(2, 140, 140), picture(3, 84, 196)]
