"""Whole answers of the model that ships, over HTTP: right to the last word, for every kind of question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo.questions import KINDS, Example, make_example
from demo.random_model import SHIPPED
from tests.e2e.live import Live

pytestmark = pytest.mark.skipif(
    not list(SHIPPED.glob("*.safetensors")), reason="the weights of the page reader are not here"
)
# More than the longest answer, so that it is the model that ends it.
TOKENS = 48


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """With the model that ships, whatever the other tests run on."""
    with Live(Path(tmp_path_factory.mktemp("store")), SHIPPED) as service:
        yield service


def examples(kind: str) -> list[Example]:
    rng = np.random.default_rng(20)
    return [make_example(rng, kind, 2 + number % 3) for number in range(3)]


def answers(reader: Live, kind: str, **cache: Any) -> list[str]:
    return [reader.ask(example, max_tokens=TOKENS, **cache).text for example in examples(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_promise_3_whole_answers_are_right_for_every_kind_of_question(reader: Live, kind: str) -> None:
    """By full prefill, which the model was trained for: a fault between the first token and the last shows here."""
    assert answers(reader, kind, policy="full") == [example.answer for example in examples(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_promise_2_whole_answers_are_right_from_the_store_as_well(reader: Live, kind: str) -> None:
    """Half refreshed, cold and warm: enough for these questions."""
    expected = [example.answer for example in examples(kind)]
    assert answers(reader, kind, mode="rewrite", refresh_ratio=0.5) == expected
    assert answers(reader, kind, mode="read", refresh_ratio=0.5) == expected
