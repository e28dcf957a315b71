"""Questions about images at the terminal: `chat`."""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from service.cli.client import CommandFailed, Service
from service.cli.report import report_lines


def add_chat(chat: argparse.ArgumentParser) -> None:
    """The options of `chat`."""
    chat.add_argument("question", nargs="*")
    chat.add_argument("-i", "--image", action="append", default=[], help="URL or file; may be given again")
    chat.add_argument("--system", help="system prompt")
    chat.add_argument("--policy")
    chat.add_argument("--refresh-ratio", type=float)
    chat.add_argument("--mode", choices=("auto", "read", "bypass", "rewrite"))
    chat.add_argument("--salt")
    chat.add_argument("--max-tokens", type=int)
    chat.set_defaults(run=_chat)


class Chat:
    """A conversation about some images: every question sees the turns before it."""

    def __init__(self, service: Service, options: argparse.Namespace, out: TextIO) -> None:
        self._service = service
        self._out = out
        self._cache = {
            "mode": options.mode,
            "policy": options.policy,
            "refresh_ratio": options.refresh_ratio,
            "salt": options.salt,
        }
        self._max_tokens = options.max_tokens
        self._images = [image_url(image) for image in options.image]
        self._turns: list[dict[str, Any]] = []
        if options.system:
            self._turns.append({"role": "system", "content": options.system})

    def ask(self, question: str) -> None:
        """Print the answer as it comes, then what was reused for it. Raises `CommandFailed`."""
        content = [{"type": "image_url", "image_url": {"url": url}} for url in self._images]
        turn = {"role": "user", "content": [*content, {"type": "text", "text": question}]}
        body = {
            "messages": [*self._turns, turn],
            "stream": True,
            "cache": self._cache,
            "max_tokens": self._max_tokens,
        }
        started, first, answer, report = time.monotonic(), None, "", None
        try:
            for chunk in self._service.stream("/v1/chat", body):
                text = chunk["choices"][0]["delta"].get("content", "")
                if text:
                    first = first or time.monotonic() - started
                    answer += text
                    print(text, end="", file=self._out, flush=True)
                report = chunk.get("kv_report", report)
        finally:
            if answer:
                print(file=self._out)
        if report is not None:
            print(*report_lines(report, first), sep="\n", file=self._out)
        self._turns += [turn, {"role": "assistant", "content": answer}]
        self._images = []

    def converse(self, questions: Iterator[str]) -> None:
        """Ask one question after the other; one that fails does not end the conversation."""
        for question in questions:
            try:
                self.ask(question)
            except CommandFailed as error:
                print(f"error: {error}", file=self._out)


def image_url(image: str) -> str:
    """A URL as it is, a file of this machine as a data URL. Raises `CommandFailed`."""
    if image.lower().startswith(("http://", "https://", "data:")):
        return image
    try:
        data = Path(image).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{image}: {error.strerror}.") from error
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"


def _chat(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    chat = Chat(service, options, out)
    if options.question:
        chat.ask(" ".join(options.question))
    else:
        chat.converse(_typed())


def _typed() -> Iterator[str]:
    while True:
        try:
            question = input("? ").strip()
        except EOFError:
            return
        if question:
            yield question
