"""An answer that is begun, who speaks, and variables of the template's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from engine.errors import InvalidPrompt
from engine.messages import ImagePart, Message, TextPart
from engine.prompt.chat import ChatPrompt
from engine.prompt.layout import PromptLayout
from tests.engine.conftest import PICTURES, Bench, said, user


def text_of(bench: Bench, layout: PromptLayout) -> str:
    return str(bench.prompt.tokenizer.decode(layout.ids.tolist(), skip_special_tokens=False))


def asked(bench: Bench, layout: PromptLayout) -> str:
    return str(bench.prompt.tokenizer.decode(layout.query.ids.tolist(), skip_special_tokens=False))


def changed(bench: Bench, path: Path, old: str, new: str) -> ChatPrompt:
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    return ChatPrompt(tokenizer, bench.family.image_token)


def test_the_prompt_ends_with_what_the_answer_begins_with(bench: Bench) -> None:
    plain = bench.prompt.layout([user("What is K?")], [])
    begun = bench.prompt.layout([user("What is K?"), said("assistant", "K is four")], [])
    assert text_of(bench, begun) == text_of(bench, plain) + "K is four"
    assert begun.next_position == len(begun.ids)


def test_an_empty_beginning_is_none(bench: Bench) -> None:
    plain = bench.prompt.layout([user("What is K?")], [])
    empty = bench.prompt.layout([user("What is K?"), Message("assistant", ())], [])
    assert np.array_equal(plain.ids, empty.ids) and np.array_equal(plain.query.slots, empty.query.slots)


def test_question_and_beginning_ask_together(bench: Bench) -> None:
    layout = bench.layout([user(0, "Look. ", "What is K?"), said("assistant", "K is")], PICTURES[:1])
    assert asked(bench, layout) == "Look. What is K?<|im_end|>\n<|im_start|>assistant\nK is"
    assert layout.query.slots.tolist() == list(range(layout.length - len(layout.query.ids), layout.length))


def test_a_question_before_the_images_asks_as_without_a_beginning(bench: Bench) -> None:
    layout = bench.layout([user("What is K?", 0), said("assistant", "K is")], PICTURES[:1])
    assert "What is K?" in asked(bench, layout) and layout.query.slots[0] == layout.length


@pytest.mark.parametrize(
    "messages",
    [
        [said("assistant", "K is")],
        [said("system", "x"), said("assistant", "K is")],
        [user("x"), said("assistant", "K"), said("assistant", " is")],
        [user("x"), Message("assistant", (ImagePart(0),))],
    ],
    ids=["alone", "behind the system", "twice", "an image"],
)
def test_only_text_begins_an_answer_and_only_to_a_question(bench: Bench, messages: list[Message]) -> None:
    images = sum(isinstance(part, ImagePart) for message in messages for part in message.parts)
    with pytest.raises(InvalidPrompt, match="last message"):
        bench.prompt.layout(messages, [bench.family.span(168, 112)] * images)


def test_a_beginning_holds_no_reserved_text(bench: Bench) -> None:
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout([user("x"), said("assistant", "<|im_end|>")], [])


def named(role: str, name: str, text: str) -> Message:
    return Message(role, (TextPart(text),), name=name)  # type: ignore[arg-type]


def test_a_name_stands_before_the_text_where_the_template_shows_none(bench: Bench) -> None:
    layout = bench.prompt.layout(
        [named("user", "Al", "Hi."), said("assistant", "Yes?"), named("user", "Bo", "Why?")], []
    )
    text = text_of(bench, layout)
    assert "user\nAl: Hi.<|im_end|>" in text and "user\nBo: Why?<|im_end|>" in text
    assert asked(bench, layout).startswith("Why?")


def test_a_name_is_left_to_a_template_that_shows_it(bench: Bench, tiny_path: Path) -> None:
    prompt = changed(
        bench, tiny_path, "message.role", "message.role ~ (' as ' ~ message.name if message.name else '')"
    )
    text = text_of(bench, prompt.layout([named("user", "Al", "Hi.")], []))
    assert "user as Al\nHi.<|im_end|>" in text


def test_a_name_is_no_way_around_reserved_text(bench: Bench) -> None:
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout([named("user", "<|im_end|>", "Hi.")], [])


def test_a_template_s_own_variables_reach_it(bench: Bench, tiny_path: Path) -> None:
    prompt = changed(bench, tiny_path, "message.role", "message.role ~ (' slowly' if thinking else '')")
    assert "user slowly\nHi." in text_of(bench, prompt.layout([user("Hi.")], [], options={"thinking": True}))
    plain = prompt.layout([user("Hi.")], [])
    assert np.array_equal(prompt.layout([user("Hi.")], [], options={"thinking": False}).ids, plain.ids)


@pytest.mark.parametrize(
    "name", ["thinking", "messages", "add_generation_prompt", "bos_token", "mess", "(", ""]
)
def test_what_the_template_does_not_read_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidPrompt, match="chat_template_kwargs"):
        bench.prompt.layout([user("Hi.")], [], options={name: True})


def test_a_variable_is_no_way_around_reserved_text(bench: Bench, tiny_path: Path) -> None:
    prompt = changed(bench, tiny_path, "message.role", "message.role ~ (tone or '')")
    with pytest.raises(InvalidPrompt, match="reserved"):
        prompt.layout([user("Hi.")], [], options={"tone": "<|im_end|>"})
