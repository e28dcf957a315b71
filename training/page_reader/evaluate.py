"""Accuracy of the page reader per kind: full prefill with stock Hugging Face code, and plain reuse.

`python -m training.page_reader.evaluate` asks held-out prompts greedily, prints a table and writes accuracy.json
beside the weights. An answer counts when the whole text is right; "first" counts its first token alone.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessorPil

from demo.pages import MAX_PAGES, to_image
from demo.questions import KINDS, SEVERAL_PAGES, Example, make_example
from training.page_reader.files import GRID_PATCHES, PAGE_TOKENS
from training.page_reader.reuse import PlainReuse

_SEED: Final = 20_000  # training draws from one generator seeded with a small number, so these pages are new
_LIMIT: Final = 64
_BATCH: Final = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the whole answer and its first token were right."""

    whole: bool
    first: bool


class Reader:
    """The shipped model with its tokenizer and image processor, as anyone would load them."""

    def __init__(self, folder: Path) -> None:
        self.model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.image_pad = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.stop = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        prefix = self._template([{"role": "user", "content": [{"type": "image"}]}])
        cut = prefix.index("<|image_pad|>")
        self.reuse = PlainReuse(self.model, self.tokenizer(prefix[:cut]).input_ids, self.image_pad)

    def _template(self, messages: list[dict[str, Any]]) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        return text

    def prompt(self, example: Example) -> str:
        """The prompt text with one image pad for each merged visual token."""
        return self._template(example.messages()).replace("<|image_pad|>", "<|image_pad|>" * PAGE_TOKENS)

    def inputs(self, examples: list[Example]) -> dict[str, torch.Tensor]:
        """Left-padded model inputs of several examples."""
        encoded = self.tokenizer(
            [self.prompt(example) for example in examples],
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        pictures = [to_image(page) for example in examples for page in example.pages]
        pixels = self.processor(images=pictures, return_tensors="pt")["pixel_values"]
        return {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "mm_token_type_ids": (encoded["input_ids"] == self.image_pad).int(),
            "pixel_values": pixels,
            "image_grid_thw": torch.tensor([[1, GRID_PATCHES, GRID_PATCHES]]).expand(len(pictures), 3),
        }

    @torch.no_grad()
    def answer_full(self, examples: list[Example]) -> list[list[int]]:
        """Greedy answers under full prefill by stock `generate`, without the stop token."""
        inputs = self.inputs(examples)
        out = self.model.generate(**inputs, do_sample=False, max_new_tokens=_LIMIT)
        rows = out[:, inputs["input_ids"].shape[1] :].tolist()
        return [row[: row.index(self.stop)] if self.stop in row else row for row in rows]

    def answer_reuse(self, example: Example) -> list[int]:
        """Greedy answer from pages computed in isolation, nothing refreshed."""
        inputs = self.inputs([example])
        ids, pixels, grids = (inputs[name] for name in ("input_ids", "pixel_values", "image_grid_thw"))
        row = self.reuse.answer(ids, pixels, grids, self.stop, _LIMIT)
        return row[:-1] if row[-1] == self.stop else row

    def judge(self, example: Example, answer: list[int]) -> Verdict:
        """Compare an answer with the expected text."""
        expected = self.tokenizer(example.answer).input_ids
        return Verdict(answer == expected, answer[:1] == expected[:1])


def held_out(kind: str, count: int, seed: int = _SEED) -> Iterator[Example]:
    """`count` examples of a kind, with every number of pages it allows in turn."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    fewest = 2 if kind in SEVERAL_PAGES else 1
    for i in range(count):
        yield make_example(rng, kind, fewest + i % (MAX_PAGES + 1 - fewest))


def measure(reader: Reader, kind: str, count: int) -> dict[str, Any]:
    """Accuracy of one kind in percent, with the number of examples and the share for each number of pages."""
    examples = sorted(held_out(kind, count), key=lambda example: len(example.pages))
    full: list[Verdict] = []
    for start in range(0, count, _BATCH):
        part = examples[start : start + _BATCH]
        full += map(reader.judge, part, reader.answer_full(part))
    reuse = [reader.judge(example, reader.answer_reuse(example)) for example in examples]
    sizes = np.array([len(example.pages) for example in examples])
    right = np.array([verdict.whole for verdict in full])
    return {
        "n": count,
        "full": _percent([verdict.whole for verdict in full]),
        "full_first": _percent([verdict.first for verdict in full]),
        "reuse": _percent([verdict.whole for verdict in reuse]),
        "reuse_first": _percent([verdict.first for verdict in reuse]),
        "full_by_pages": {
            str(size): _percent(right[sizes == size].tolist()) for size in sorted(set(sizes.tolist()))
        },
    }


def _percent(right: list[bool]) -> float:
    return round(100 * sum(right) / len(right), 1)


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| kind | n | full | full, first token | reuse r=0 | reuse, first token |",
        "|---|---|---|---|---|---|",
    ]
    for kind, row in results.items():
        cells = [row[name] for name in ("n", "full", "full_first", "reuse", "reuse_first")]
        lines.append("| " + " | ".join(map(str, [kind, *cells])) + " |")
    return "\n".join(lines)


def main() -> None:
    """Evaluate every kind and write accuracy.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("models/page-reader"))
    parser.add_argument("--count", type=int, default=120, help="examples of each kind")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reader = Reader(options.folder)
    results = {kind: measure(reader, kind, options.count) for kind in options.kinds}
    names = ("full", "full_first", "reuse", "reuse_first")
    means = {name: round(float(np.mean([row[name] for row in results.values()])), 1) for name in names}
    results["overall"] = {"n": options.count * len(options.kinds), **means}
    print(table(results))
    output = options.output or options.folder / "accuracy.json"
    output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
