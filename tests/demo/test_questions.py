"""Expected answers agree with a second reader that knows only the messages and the pages."""

import re
from typing import Any

import numpy as np
import pytest

from demo.pages import MAX_PAGES, Page
from demo.questions import KINDS, ORDINALS, SEVERAL_PAGES, Example, Message, make_example, vocabulary

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
MASKS = {"ruby": 1, "onyx": 3, "jade": 5, "opal": 6, "topaz": 7}


def examples(kind: str, count: int) -> list[Example]:
    rng = np.random.default_rng(11)
    fewest = 2 if kind in SEVERAL_PAGES else 1
    return [make_example(rng, kind, fewest + i % (MAX_PAGES + 1 - fewest)) for i in range(count)]


def text_of(message: Message) -> str:
    content = message["content"]
    return (
        content if isinstance(content, str) else " ".join(part["text"] for part in content if "text" in part)
    )


def lookup(pages: tuple[Page, ...], page: Page, key: str, tables: dict[str, str]) -> str:
    (cell,) = (cell for cell in page.cells if cell.key == key)
    if cell.same_as:
        (page,) = (other for other in pages if other.tint == cell.same_as)
        (cell,) = (cell for cell in page.cells if cell.key == key)
    return WORDS[cell.digit ^ MASKS.get(tables.get(cell.ink, ""), 0)]


def second_reading(example: Example, messages: list[dict[str, Any]]) -> str:
    """The value (or for a list all values) that the last question asks for, from the texts of the messages."""
    system = text_of(messages[0]) if messages[0]["role"] == "system" else ""
    tables = dict(re.findall(r"(\w+)=(\w+)", system))
    asked = [text_of(message) for message in messages if message["role"] == "user"]
    name = re.findall(r"the (\w+) page", " ".join(asked))[-1]
    pages = example.pages
    page = pages[ORDINALS.index(name)] if name in ORDINALS else next(p for p in pages if p.tint == name)
    keys = re.findall(r"\b[A-L]\b", asked[-1])
    if not keys:
        return ", ".join(f"{cell.key} {lookup(pages, page, cell.key, tables)}" for cell in page.cells) + "."
    return lookup(pages, page, keys[-1], tables)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_can_be_recomputed_from_the_messages(kind: str) -> None:
    for example in examples(kind, 60):
        value = second_reading(example, example.messages())
        assert example.answer.startswith(value)
        assert kind != "list" or example.answer == value


@pytest.mark.parametrize("kind", KINDS)
def test_equal_generators_give_equal_examples(kind: str) -> None:
    assert examples(kind, 5) == examples(kind, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_asked_and_source_cells(kind: str) -> None:
    for example in examples(kind, 30):
        asked, source = example.question.asked, example.question.source
        cell, written = (
            next(cell for cell in example.pages[place.page].cells if cell.position == place.position)
            for place in (asked, source)
        )
        assert cell.key == written.key
        assert written.same_as is None
        if kind != "two_hop":
            assert asked == source


def test_two_hop_needs_another_page_nearly_always() -> None:
    crossing = [
        example.question.asked.page != example.question.source.page for example in examples("two_hop", 200)
    ]
    assert sum(crossing) > 190


def test_what_sets_the_kinds_apart() -> None:
    for example in examples("system", 20):
        assert example.system is not None and "=" in example.system
    for example in examples("page_order", 20):
        assert any(f"the {word} page" in example.question.text for word in ORDINALS)
    for example in examples("distractor", 20):
        assert len({tuple(cell.key for cell in page.cells) for page in example.pages}) == 1
    for example in examples("reordered", 20):
        assert sorted(example.first_shown) == list(range(len(example.pages)))
        assert example.first_shown != tuple(range(len(example.pages)))
    for example in examples("list", 20):
        assert len(example.answer.split()) >= 12
    for example in examples("dialogue", 20):
        assert [m["role"] for m in example.messages() if m["role"] != "system"] == [
            "user",
            "assistant",
            "user",
        ]


def test_messages_carry_the_addresses_in_page_order() -> None:
    example = examples("question_first", 3)[2]
    urls = [f"http://pages/{i}.png" for i in range(len(example.pages))]
    content = next(m for m in example.messages(urls) if m["role"] == "user")["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "image_url", "image_url"]
    assert [part["image_url"]["url"] for part in content[1:]] == urls
    with pytest.raises(ValueError, match="addresses"):
        example.messages(urls[:-1])


@pytest.mark.parametrize(
    ("kind", "count"), [("nonsense", 2), ("two_hop", 1), ("page_order", 1), ("list", 9), ("list", 0)]
)
def test_impossible_examples_are_refused(kind: str, count: int) -> None:
    with pytest.raises(ValueError, match=r"unknown|cannot"):
        make_example(np.random.default_rng(0), kind, count)


def test_the_vocabulary_covers_every_word() -> None:
    known = set(vocabulary())
    for kind in KINDS:
        for example in examples(kind, 40):
            for message in [*example.messages(), {"role": "assistant", "content": example.answer}]:
                words = re.findall(r"[A-Za-z=]+", text_of(message))
                assert set(words) <= known
