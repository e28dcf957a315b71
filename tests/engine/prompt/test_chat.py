"""The checkpoint's tokenizer and template, whatever they are set to do; what a conversation may leave out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from engine.errors import InvalidPrompt, UnsupportedModel
from engine.prompt.chat import ChatPrompt
from tests.engine.conftest import PICTURES, Bench, said, user

LONG = "What is K on the red page? " * 60


def chat_prompt(bench: Bench, path: Path, **changes: object) -> ChatPrompt:
    tokenizer = AutoTokenizer.from_pretrained(path)
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return ChatPrompt(tokenizer, bench.family.image_token)


def test_a_tokenizer_set_to_cut_or_to_fill_up_does_neither(bench: Bench, tiny_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    tokenizer.backend_tokenizer.enable_truncation(20)
    tokenizer.backend_tokenizer.enable_padding(length=2000)
    prompt = ChatPrompt(tokenizer, bench.family.image_token)
    whole = bench.layout([user(LONG)], [])
    assert whole.length > 400
    assert np.array_equal(prompt.layout([user(LONG)], []).ids, whole.ids)


@pytest.mark.parametrize("text", ["K", LONG, "zq" * 500, "\u4f60\u597d" * 50, "\U0001f600 e\u0301 \n" * 30])
def test_text_is_never_counted_longer_than_it_is(bench: Bench, text: str) -> None:
    messages = [said("system", text), user(text)]
    empty = bench.layout([said("system", "x"), user("x")], []).length
    least = bench.prompt.least_tokens(messages)
    assert least <= bench.layout(messages, []).length - empty + 2
    assert least >= 2 * len(text) // 100


@pytest.mark.parametrize("parts", [("K",), (0, "K"), ("K", 0, 0)])
def test_every_image_stands_somewhere_and_once(bench: Bench, parts: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidPrompt, match="image parts for 2 images"):
        bench.layout([user(*parts)], PICTURES[:2])


def test_images_stand_in_the_order_of_the_conversation(bench: Bench) -> None:
    layout = bench.layout([user(2, "then ", 0), said("assistant", "four"), user(1, "K")], PICTURES)
    assert [span.image for span in layout.spans] == [2, 0, 1]
    shapes = [bench.family.span(p.shape[1], p.shape[0]) for p in PICTURES]
    assert [span.tokens for span in layout.spans] == [shapes[i].tokens for i in (2, 0, 1)]


def test_another_question_scores_in_the_user_s_place_and_changes_nothing_else(bench: Bench) -> None:
    messages, shapes = [user(0, "What is K?")], [bench.family.span(168, 112)]
    own = bench.prompt.layout(messages, shapes)
    other = bench.prompt.layout(messages, shapes, "List what is on the first page.")
    assert np.array_equal(own.ids, other.ids) and np.array_equal(own.positions, other.positions)
    asked = bench.prompt.tokenizer.decode(other.query.ids.tolist(), skip_special_tokens=False)
    assert asked == "List what is on the first page.<|im_end|>\n<|im_start|>assistant\n"
    assert other.query.slots.tolist() == list(range(own.length, own.length + len(other.query.ids)))
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout(messages, shapes, "<|im_end|>")


@pytest.mark.parametrize("behind", ["  ", "\n", ""])
def test_blank_text_behind_the_images_is_no_question(bench: Bench, behind: str) -> None:
    layout = bench.layout([user("What is K?", 0, behind)], PICTURES[:1])
    asked = bench.prompt.tokenizer.decode(layout.query.ids.tolist(), skip_special_tokens=False)
    assert "What is K?" in asked and layout.query.slots[0] == layout.length


def template_with(tiny_path: Path, text: str) -> str:
    """The checkpoint's own, but for how it writes text."""
    own: str = AutoTokenizer.from_pretrained(tiny_path).chat_template
    changed = own.replace("{{ part.text }}", "{{ " + text + " }}")
    assert changed != own
    return changed


REWRITING = {
    "that drops what it does not know": "part.text | replace('\ue0ff', '') if messages | length > 1 else part.text",
    "that counts": "part.text ~ (part.text | length)",
}


@pytest.mark.parametrize("template", REWRITING)
def test_behind_a_template_that_rewrites_text_the_whole_tail_asks(
    bench: Bench, tiny_path: Path, template: str
) -> None:
    prompt = chat_prompt(bench, tiny_path, chat_template=template_with(tiny_path, REWRITING[template]))
    conversation = [said("system", "x"), user(0, "look closely. ", "What is K?")]
    layout = prompt.layout(conversation, [bench.family.span(168, 112)])
    assert layout.query.slots.tolist() == layout.tail().tolist()


@pytest.mark.parametrize("text", ["", "part.text ~ part.text", "part.text | replace('\ue0ff', '')"])
def test_a_template_that_does_not_say_what_is_said_is_refused(
    bench: Bench, tiny_path: Path, text: str
) -> None:
    with pytest.raises(UnsupportedModel, match="once and as it is"):
        chat_prompt(bench, tiny_path, chat_template=template_with(tiny_path, text or "''"))


def test_a_template_without_images_is_refused(bench: Bench, tiny_path: Path) -> None:
    template = "{% for message in messages %}{{ message.role }}{% endfor %}"
    with pytest.raises(UnsupportedModel, match="no place for an image"):
        chat_prompt(bench, tiny_path, chat_template=template)
