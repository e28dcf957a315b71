"""The committed weights answer, and plain reuse loses what depends on the prefix."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from demo.questions import KINDS, make_example
from training.page_reader.evaluate import Reader, held_out, table

SHIPPED = Path(__file__).parents[2] / "models" / "page-reader"
WEIGHTS = SHIPPED / "model.safetensors"

pytestmark = pytest.mark.skipif(not WEIGHTS.exists(), reason="the weights of the page reader are not here")


@pytest.fixture(scope="module")
def reader() -> Reader:
    torch.set_num_threads(1)
    return Reader(SHIPPED)


def test_the_weights_are_small_and_hold_plain_floats(reader: Reader) -> None:
    assert WEIGHTS.stat().st_size <= 16 * 2**20
    assert {parameter.dtype for parameter in reader.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
def test_a_handful_of_held_out_prompts_is_answered(reader: Reader, kind: str) -> None:
    examples = list(held_out(kind, 4, seed=1))
    answers = reader.answer_full(examples)
    right = sum(
        reader.judge(example, answer).whole for example, answer in zip(examples, answers, strict=True)
    )
    assert right >= 3


def test_the_first_image_behind_the_default_prompt_is_reused_exactly(reader: Reader) -> None:
    examples = [make_example(np.random.default_rng(i), "single_hop", 1) for i in range(5)]
    examples = [example for example in examples if example.system is None]
    assert examples
    assert [reader.answer_reuse(example) for example in examples] == reader.answer_full(examples)


def test_plain_reuse_reads_wrongly_behind_a_system_prompt_with_tables(reader: Reader) -> None:
    examples = [make_example(np.random.default_rng(i), "system", 2) for i in range(6)]
    right = sum(reader.judge(example, reader.answer_reuse(example)).first for example in examples)
    assert right <= 2


def test_the_card_states_the_measured_accuracy() -> None:
    results = json.loads((SHIPPED / "accuracy.json").read_text())
    assert table(results) in (SHIPPED / "README.md").read_text()
    kinds = {kind: row for kind, row in results.items() if kind != "overall"}
    assert set(kinds) == set(KINDS)
    assert results["overall"]["n"] >= 1000
    assert results["overall"]["full"] >= 95
    assert all(row["n"] >= 100 and row["full"] >= 90 for row in kinds.values())
    for kind in ("system", "two_hop", "page_order"):
        assert kinds[kind]["full"] - kinds[kind]["reuse"] >= 10
