"""The files beside the weights: tokenizer, chat template, image processor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor, AutoTokenizer

from demo.pages import draw_pages, render, to_image
from demo.questions import DEFAULT_SYSTEM, vocabulary
from training.page_reader.batches import patches
from training.page_reader.files import SPECIAL_TOKENS, write_files

SHIPPED = Path(__file__).parents[2] / "models" / "page-reader"
FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json")
TEXTS = (
    "What is K on the red page?",
    "  two  spaces,\ttabs\r\n\nand lines\n",
    "héllo wörld, 日本語, 🙂 and \u200b",
    "black=ruby navy=nothing = == a=b",
    "Ġ Ċ <|im_start|>system\n<|image_pad|>",
    "",
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED)


def test_the_shipped_files_are_what_the_code_writes(tmp_path: Path) -> None:
    write_files(tmp_path)
    for name in (*FILES, "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == (SHIPPED / name).read_text(), name


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_round_trips(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_every_byte_sequence_tokenizes(tokenizer: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        text = "".join(chr(c) for c in rng.integers(1, 0xD7FF, 30))
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_each_word_of_the_page_world_is_one_token(tokenizer: Any) -> None:
    for word in vocabulary():
        assert len(tokenizer(word).input_ids) == 1
        assert len(tokenizer(f" {word}").input_ids) == 1


def test_special_tokens_are_single_and_distinct(tokenizer: Any) -> None:
    ids = [tokenizer(token).input_ids for token in SPECIAL_TOKENS]
    assert all(len(row) == 1 for row in ids)
    assert len({row[0] for row in ids}) == len(SPECIAL_TOKENS)
    assert tokenizer.eos_token == "<|im_end|>"


def test_the_chat_template_adds_the_default_system_prompt(tokenizer: Any) -> None:
    content = [
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "Hi"},
    ]
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    user = f"<|im_start|>user\n{image}{image}Hi<|im_end|>\n"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    assert text == f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n{user}<|im_start|>assistant\n"


def test_the_chat_template_keeps_a_given_system_prompt_and_history(tokenizer: Any) -> None:
    turns = [("system", "Be brief."), ("user", "A"), ("assistant", "B"), ("user", "C")]
    messages = [{"role": role, "content": content} for role, content in turns]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)


def test_the_image_processor_equals_the_training_layout_bit_for_bit() -> None:
    processor = AutoImageProcessor.from_pretrained(SHIPPED)
    pages = draw_pages(np.random.default_rng(0), 8, links=0.3)
    levels = np.resize(np.arange(256, dtype=np.uint8), (96, 96, 3))
    pictures = torch.from_numpy(np.stack([*(render(page) for page in pages), levels]))
    out = processor(
        images=[*map(to_image, pages), levels], return_tensors="pt", input_data_format="channels_last"
    )
    assert torch.equal(out["pixel_values"], patches(pictures))
    assert out["image_grid_thw"].tolist() == [[1, 12, 12]] * 9
