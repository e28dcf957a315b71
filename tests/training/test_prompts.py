"""Training prompts are the prompts that the service will see, with several questions side by side."""

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from demo.questions import KINDS, Example, make_example
from training.page_reader.batches import collate, draw_batch
from training.page_reader.curriculum import STAGES, Curriculum
from training.page_reader.files import PAGE_TOKENS, build_config, build_tokenizer
from training.page_reader.prompts import Codec, Prompt

TOKENIZER = build_tokenizer()
CODEC = Codec(TOKENIZER)
MIX = STAGES[-1].mix


def prompt_of(example: Example, reading: dict[str, str]) -> Prompt:
    """The training prompt of an example without history."""
    prompt = Prompt(CODEC, example.pages, example.system, reading)
    if example.question_first:
        prompt.add_question_before_pages("first", example.question)
    else:
        prompt.add_pages()
        prompt.add_question("list" if example.kind == "list" else "tint", example.question, full=True)
    return prompt


def reading_of(example: Example) -> dict[str, str]:
    words = (example.system or "").replace(".", "").split()
    return dict(word.split("=") for word in words if "=" in word)


def chat_text(example: Example) -> str:
    text = TOKENIZER.apply_chat_template(example.messages(), tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text.replace("<|image_pad|>", "<|image_pad|>" * PAGE_TOKENS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dialogue"])
def test_a_training_prompt_is_the_chat_prompt_with_its_answer(kind: str) -> None:
    rng = np.random.default_rng(3)
    for count in (2, 3, 8):
        example = make_example(rng, kind, count)
        prompt = prompt_of(example, reading_of(example))
        assert prompt.ids == TOKENIZER(f"{chat_text(example)}{example.answer}<|im_end|>").input_ids


def test_a_training_dialogue_is_the_chat_dialogue() -> None:
    rng = np.random.default_rng(4)
    example = make_example(rng, "dialogue", 3)
    prompt = Prompt(CODEC, example.pages, example.system, {})
    prompt.add_pages()
    (first,) = example.history
    question = example.question
    opening = type(question)(first[0], first[1], question.asked, question.source)
    prompt.add_dialogue("dialogue", opening, question)
    assert prompt.ids == TOKENIZER(f"{chat_text(example)}{example.answer}<|im_end|>").input_ids


@pytest.mark.parametrize("kind", ["single_hop", "question_first"])
def test_positions_equal_those_of_the_stock_model(kind: str) -> None:
    prompt = prompt_of(make_example(np.random.default_rng(5), kind, 4), {})
    ids = torch.tensor([prompt.ids])
    model = Qwen2_5_VLForConditionalGeneration._from_config(build_config(TOKENIZER)).model
    pages = torch.tensor([[1, 12, 12]]).expand(4, 3)
    expected, _ = model.get_rope_index(ids, (ids == CODEC.image_pad).int(), image_grid_thw=pages)
    assert torch.equal(expected[:, 0].T, torch.tensor(prompt.positions))


def test_a_question_sees_the_context_and_itself_only() -> None:
    batch = draw_batch(np.random.default_rng(6), CODEC, MIX)
    mask = batch.mask()[:, 0]
    for visible, segments in zip(mask, batch.segments, strict=True):
        rows, columns = visible.nonzero(as_tuple=True)
        assert bool((columns <= rows).all())
        real = segments[rows] >= 0
        own = (segments[columns] == segments[rows]) | (segments[columns] == 0)
        assert bool(own[real].all())
        assert bool(visible.diagonal()[segments >= 0].all())


def test_the_last_token_before_an_answer_predicts_it() -> None:
    example = make_example(np.random.default_rng(7), "single_hop", 2)
    prompt = prompt_of(example, {})
    batch = collate([prompt])
    counted = batch.answers[batch.answer_weights == 1]
    rows, targets = counted[:, 1], counted[:, 2]
    assert targets.tolist() == batch.ids[0, rows + 1].tolist()
    assert TOKENIZER.decode(targets) == f"{example.answer}<|im_end|>"


def test_looks_point_at_the_asked_cell() -> None:
    example = make_example(np.random.default_rng(8), "distractor", 3)
    prompt = prompt_of(example, {})
    place = example.question.asked
    assert {target for _, target in prompt.notes.looks["asked"]} == {
        prompt.first_rows[place.page] + place.position
    }


def test_equal_generators_give_equal_batches() -> None:
    first, second = (draw_batch(np.random.default_rng(9), CODEC, MIX) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.pictures, second.pictures)
    assert torch.equal(first.answers, second.answers)


def test_the_curriculum_moves_on_by_accuracy_and_by_cap() -> None:
    curriculum = Curriculum()
    for _ in range(40):
        assert curriculum.stage == 0
        curriculum.record({"tint": (9, 9), "table": (10, 10)})
    assert curriculum.stage == 1
    for _ in range(STAGES[1].cap):
        assert curriculum.stage == 1
        curriculum.record({"tint": (0, 9)})
    assert curriculum.stage == 2


def test_failing_skills_are_drawn_more_often() -> None:
    curriculum = Curriculum()
    curriculum.stage = 1
    for _ in range(30):
        curriculum.record({"tint": (10, 10), "table": (10, 10), "order": (2, 10)})
    weights = curriculum.mix().weights
    assert weights["order"] > 2 * weights["tint"]
