"""Conversation -> token ids -> `PromptLayout`, with the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from jinja2 import TemplateError

from engine.calls.format import CallFormat
from engine.errors import InvalidPrompt, UnsupportedModel
from engine.families.span import SpanShape
from engine.messages import ImagePart, Message, TextPart
from engine.prompt.layout import (
    ImageSpan,
    PromptLayout,
    Query,
    exact_spans,
    ghost_query,
    place,
    positions_of,
    scratch_query,
    tail_query,
)
from engine.prompt.options import NO_OPTIONS, Options, option_texts
from engine.prompt.tools import call_format
from engine.prompt.turns import (
    Turn,
    definitions_of,
    has_tools,
    shows_names,
    spelled_out,
    split_begun,
    tool_texts,
    turns_of,
)
from engine.tools import Tools

# Marks where the question starts in a rendered conversation; a private-use character no tokenizer ever sees.
MARK = "\ue0ff"


class ChatPrompt:
    """Lays conversations out for one model.

    `prefix_ids` is the canonical prefix: the template up to and including the image-start token of a conversation
    that holds one image and nothing else, so with the template's default system prompt (or `system`, where the
    operator sets one, which then also stands before conversations that bring none). Raises `UnsupportedModel` for a
    template that has no place for an image or for text.
    """

    def __init__(self, tokenizer: Any, image_token: int, system: str | None = None) -> None:
        # The Rust tokenizer itself: its encode and decode may be called from several threads at once.
        self.tokenizer = tokenizer.backend_tokenizer
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._template = tokenizer
        self._longest_token = max(len(token) for token in tokenizer.get_vocab())
        self._image_token = image_token
        self._system = system
        self._special = frozenset(tokenizer.all_special_tokens)
        self._reserved = tuple(sorted(tokenizer.all_special_tokens + list(tokenizer.get_added_vocab())))
        canonical = self._tokenize(self._render((Message("user", (ImagePart(0),)),)))
        if image_token not in canonical:
            raise UnsupportedModel("the chat template has no place for an image")
        self.prefix_ids: tuple[int, ...] = tuple(canonical[: canonical.index(image_token)])
        marked = self._render((Message("user", (ImagePart(0), TextPart(MARK))),))
        if marked.count(MARK) != 1:
            raise UnsupportedModel("the chat template does not repeat a message's text once and as it is")
        before, _, self._behind_text = marked.partition(MARK)
        self._image_close = len(self._tokenize(before)) - len(self.prefix_ids) - 1

    @cached_property
    def call_format(self) -> CallFormat:
        """How the checkpoint calls tools. Raises `UnsupportedTools` where it does not."""
        return call_format(self._render, self._special)

    def least_tokens(self, messages: Sequence[Message], tools: Tools | None = None) -> int:
        """Tokens that the text of a conversation takes at least, known without tokenising it."""
        texts = [part.text for message in messages for part in message.parts if isinstance(part, TextPart)]
        texts += [call.arguments for message in messages for call in message.calls]
        # A template may show of a definition less than all.
        texts += [tool.name for tool in tools.known] if tools is not None else []
        return sum(map(len, texts)) // self._longest_token

    def layout(
        self,
        messages: Sequence[Message],
        shapes: Sequence[SpanShape],
        question: str | None = None,
        tools: Tools | None = None,
        options: Options = NO_OPTIONS,
    ) -> PromptLayout:
        """Lay out a conversation whose image i takes the rows of `shapes[i]`. What the assistant says last is the
        beginning of the answer, which goes on behind it. With a `question`, that one scores in the place of the user's
        (a control; the prompt is the same). `options` are variables of the template's own. Raises `InvalidPrompt`, and
        `UnsupportedTools` where there are tools, calls or results that the template does not show."""
        self._check(messages, len(shapes))
        for text in option_texts(options, self._template.chat_template):
            self._check_text(text)
        messages, begun = split_begun(messages)
        if has_tools(messages, tools):
            self._check_tools(messages, tools)

        def render(turns: Sequence[Message]) -> str:
            return self._render(turns, tools, options) + begun

        rendered = render(messages)
        order = [part.index for message in messages for part in message.parts if isinstance(part, ImagePart)]
        unplaced = self._tokenize(rendered)
        ids, spans = place(unplaced, self._image_token, [(i, shapes[i]) for i in order])
        if len(spans) < len(order):
            raise InvalidPrompt("messages: the chat template has no place for an image in one of these turns")
        positions, following = positions_of(len(ids), spans)
        tail_start = spans[-1].stop if spans else 0
        query = self._query(messages, render, ids, tail_start, positions)
        asked = int(query.slots[0]) if _following_text(messages) is not None else _last_turn(messages, spans)
        if question is not None:
            query = self._foreign_query(question, ids, tail_start, positions)
        exact = exact_spans(ids, spans, self.prefix_ids)
        return PromptLayout(ids, spans, positions, following, query, exact, asked)

    def _query(
        self,
        messages: Sequence[Message],
        render: Callable[[Sequence[Message]], str],
        ids: Any,
        tail_start: int,
        positions: Any,
    ) -> Query:
        """Rows of the last message where its text follows the last image, else a ghost copy of what the user said."""
        following = _following_text(messages)
        if following is None:
            words = _asked(messages)
            question = self._tokenize(words) if words.strip() else []
            return ghost_query(ids, positions, tail_start, self._image_close, question)
        rendered, marked = render(messages), render(_mark(messages, following))
        at = marked.find(MARK)
        if at < 0 or marked.replace(MARK, "") != rendered:
            # A template that rewrites text: the whole tail asks.
            return tail_query(ids, positions, tail_start)
        behind = len(self._tokenize(rendered[at:]))
        return tail_query(ids, positions, max(tail_start, len(ids) - behind))

    def _foreign_query(self, question: str, ids: Any, tail_start: int, positions: Any) -> Query:
        """Another question behind the last image, in scratch slots."""
        self._check_text(question)
        rows = np.asarray(self._tokenize(question + self._behind_text), dtype=np.int64)
        position = int(positions[0, tail_start]) + self._image_close
        return scratch_query(rows, len(ids), position)

    def _check(self, messages: Sequence[Message], images: int) -> None:
        asking, _ = split_begun(messages)
        if not asking or asking[-1].role not in ("user", "tool"):
            raise InvalidPrompt(
                "messages: the last message must have the role 'user' or 'tool', or begin the answer to one of these"
            )
        if not any(_has_content(message) for message in messages if message.role == "user"):
            raise InvalidPrompt("messages: there is neither text nor an image to answer to")
        placed = [part.index for message in messages for part in message.parts if isinstance(part, ImagePart)]
        if sorted(placed) != list(range(images)):
            raise InvalidPrompt(f"messages: {len(placed)} image parts for {images} images")
        for message in messages:
            for text in (*_runs(message), message.name or ""):
                self._check_text(text)

    def _check_tools(self, messages: Sequence[Message], tools: Tools | None) -> None:
        _ = self.call_format  # raises where the template would leave something out
        for text in tool_texts(messages, tools):
            self._check_text(text)

    def _check_text(self, text: str) -> None:
        """Text that spells a special token would be read as the template's own structure (or as an image)."""
        for token in self._reserved:
            if token in text:
                raise InvalidPrompt(
                    f"messages: the text holds {token!r}, which is reserved by the chat template"
                )
        if MARK in text:
            raise InvalidPrompt("messages: the text holds U+E0FF, which is reserved")

    @cached_property
    def _shows_names(self) -> bool:
        """Whether the template shows who speaks."""
        return shows_names(lambda turns: self._apply(turns))

    def _render(
        self, messages: Sequence[Message], tools: Tools | None = None, options: Options = NO_OPTIONS
    ) -> str:
        """Raises `InvalidPrompt` for what the template does not take."""
        named = any(message.name for message in messages) and not self._shows_names
        chat = turns_of(spelled_out(messages) if named else messages)
        if self._system is not None and messages[0].role != "system":
            chat.insert(0, {"role": "system", "content": self._system})
        return self._apply(chat, definitions_of(tools), options)

    def _apply(
        self, chat: list[Turn], tools: list[dict[str, Any]] | None = None, options: Options = NO_OPTIONS
    ) -> str:
        try:
            text: str = self._template.apply_chat_template(
                chat, tools, tokenize=False, add_generation_prompt=True, **options
            )
        except (TemplateError, TypeError):
            # Also what a template raises itself, and a list of parts where it knows texts only.
            raise InvalidPrompt("messages: the chat template does not take turns like these") from None
        return text

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _runs(message: Message) -> list[str]:
    """The texts of a message as the template sees them: parts with no image between them stand together, and a
    reserved token may be split over them."""
    runs = [""]
    for part in message.parts:
        if isinstance(part, TextPart):
            runs[-1] += part.text
        else:
            runs.append("")
    return runs


def _has_content(message: Message) -> bool:
    return any(isinstance(part, ImagePart) or part.text.strip() for part in message.parts)


def _asked(messages: Sequence[Message]) -> str:
    """What the user said last. A tool's result is no question: what it is for was asked before."""
    users = [message for message in messages if message.role == "user"]
    last = users[-1] if users else messages[-1]
    return " ".join(part.text for part in last.parts if isinstance(part, TextPart))


def _following_text(messages: Sequence[Message]) -> int | None:
    """Index of the last message's first text part behind every image of the conversation, if there is one."""
    parts = messages[-1].parts
    last_image = max((i for i, part in enumerate(parts) if isinstance(part, ImagePart)), default=-1)
    return next(
        (
            i
            for i, part in enumerate(parts)
            if i > last_image and isinstance(part, TextPart) and part.text.strip()
        ),
        None,
    )


def _last_turn(messages: Sequence[Message], spans: Sequence[ImageSpan]) -> int:
    """A slot before which nothing of the last message stands: where the last image before it ends."""
    own = sum(isinstance(part, ImagePart) for part in messages[-1].parts)
    before = spans[: len(spans) - own]
    return before[-1].stop if before else 0


def _mark(messages: Sequence[Message], part_index: int) -> tuple[Message, ...]:
    def mark(text: str) -> str:
        stripped = text.lstrip()
        return text[: len(text) - len(stripped)] + MARK + stripped

    last = messages[-1]
    parts = tuple(
        TextPart(mark(part.text)) if i == part_index and isinstance(part, TextPart) else part
        for i, part in enumerate(last.parts)
    )
    return (*messages[:-1], replace(last, parts=parts))
