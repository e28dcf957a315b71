"""Questions about images at the terminal: `chat`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from service.cli.client import CommandFailed, Service
from service.cli.options import Images, MaxTokens, Mode, Policy, Ratio, Salt, image_url
from service.cli.report import report_line, report_rows
from service.cli.terminal import Terminal


@dataclass(frozen=True, slots=True)
class Answer:
    """`first` is the seconds to the first text, None where there was none; `end` the event that carries `kv_report`."""

    text: str
    first: float | None
    end: dict[str, Any]


def ask(service: Service, terminal: Terminal, body: dict[str, Any]) -> Answer:
    """Stream one answer to the terminal. Raises `CommandFailed`, and before it ends the line that was begun."""
    started, first, text, end = time.monotonic(), None, "", None
    try:
        for chunk in service.stream("/v1/chat", {**body, "stream": True}):
            piece = chunk["choices"][0]["delta"].get("content", "") if chunk["choices"] else ""
            if piece:
                first = first or time.monotonic() - started
                text += piece
                terminal.piece(piece)
            end = chunk if "kv_report" in chunk else end
    finally:
        if text:
            terminal.line()
    if end is None:
        raise CommandFailed(f"The answer from {service.url} broke off.", "broken_stream")
    return Answer(text, first, end)


class Conversation:
    """Every question sees the turns before it; the images stand in the first."""

    def __init__(self, service: Service, terminal: Terminal, body: dict[str, Any], images: list[str]) -> None:
        self._service, self._terminal, self._body, self._images = service, terminal, body, images
        self._turns: list[dict[str, Any]] = list(body["messages"])

    def ask(self, question: str) -> None:
        """Print the answer as it comes, then what was reused for it. Raises `CommandFailed`."""
        content = [{"type": "image_url", "image_url": {"url": url}} for url in self._images]
        turn = {"role": "user", "content": [*content, {"type": "text", "text": question}]}
        answer = ask(self._service, self._terminal, {**self._body, "messages": [*self._turns, turn]})
        report, finish = answer.end["kv_report"], answer.end["choices"][0]["finish_reason"]
        first = None if answer.first is None else round(answer.first * 1000, 1)
        self._terminal.document(
            {"answer": answer.text, "finish_reason": finish, "first_text_ms": first, "kv_report": report}
        )
        self._terminal.line(report_line(report, answer.first))
        self._terminal.table((), report_rows(report))
        self._turns += [turn, {"role": "assistant", "content": answer.text}]
        self._images = []

    def converse(self, questions: Iterator[str]) -> None:
        """Ask one question after the other; one that fails does not end the conversation."""
        for question in questions:
            try:
                self.ask(question)
            except CommandFailed as error:
                self._terminal.failed(error.message, error.code)


def chat(
    service: Service,
    terminal: Terminal,
    question: Annotated[
        list[str] | None, typer.Argument(help="Without one: a conversation, a line a question.")
    ] = None,
    image: Images = [],  # noqa: B006 (typer's own)
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    policy: Policy = None,
    refresh_ratio: Ratio = None,
    mode: Annotated[Mode | None, typer.Option()] = None,
    salt: Salt = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Ask about images; without a question, a conversation."""
    cache = {"mode": mode, "policy": policy, "refresh_ratio": refresh_ratio, "salt": salt}
    begin = [{"role": "system", "content": system}] if system else []
    body = {"messages": begin, "cache": cache, "max_tokens": max_tokens}
    conversation = Conversation(service, terminal, body, [image_url(one) for one in image])
    if question:
        conversation.ask(" ".join(question))
    else:
        conversation.converse(_typed())


def _typed() -> Iterator[str]:
    prompt = "? " if sys.stdin.isatty() else ""
    while True:
        try:
            question = input(prompt).strip()
        except EOFError:
            return
        if question:
            yield question
