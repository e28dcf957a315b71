"""Terminal client: `python -m service.cli chat --image page.png "What is the total?"`, and the operator's
`cache` verbs.

The service's address and key come from `--url` and `--key`, or from `CONDUITCTL_URL` and `CONDUITCTL_KEY`.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import httpx

from service.cli_report import entry_lines, report_lines, stats_lines

DEFAULT_URL: Final = "http://127.0.0.1:8000"
_SIZE_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class CommandFailed(Exception):
    """The service refused, or could not be reached; the message says why."""


class Service:
    """The service at `url` as the commands use it."""

    def __init__(self, url: str, key: str | None, transport: httpx.BaseTransport | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        # Pings come every 15 s: a stream that is silent for longer than that is dead.
        timeout = httpx.Timeout(60.0, connect=10.0)
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def call(self, method: str, path: str, **request: Any) -> Any:
        """The JSON answer (None where there is none). Raises `CommandFailed`."""
        try:
            response = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        _check(response)
        return response.json() if response.content else None

    def stream(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer. Raises `CommandFailed`, also for a failure within the stream."""
        try:
            with self._client.stream("POST", "/v1/chat", json=body) as response:
                if response.status_code != 200:
                    response.read()
                _check(response)
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _chunk(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise _unreachable(error) from error


def _chunk(text: str) -> dict[str, Any]:
    chunk: dict[str, Any] = json.loads(text)
    if "error" in chunk:
        raise CommandFailed(chunk["error"]["message"])
    return chunk


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        error = response.json()["error"]
        raise CommandFailed(f"{error['message']} ({error['code']})")
    except (ValueError, KeyError, TypeError):
        raise CommandFailed(f"The server answered with status {response.status_code}.") from None


def _unreachable(error: httpx.HTTPError) -> CommandFailed:
    return CommandFailed(f"No answer from the service: {error or type(error).__name__}.")


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
            for chunk in self._service.stream(body):
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


def _typed() -> Iterator[str]:
    while True:
        try:
            question = input("? ").strip()
        except EOFError:
            return
        if question:
            yield question


def _chat(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    chat = Chat(service, options, out)
    if options.question:
        chat.ask(" ".join(options.question))
    else:
        chat.converse(_typed())


def _stats(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    print(*stats_lines(service.call("GET", "/v1/cache/stats")), sep="\n", file=out)


def _ls(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    query: dict[str, Any] = {**_filter(options), "limit": 200}
    now, header = time.time(), True
    while query.get("cursor", "") is not None:
        page = service.call("GET", "/v1/cache/entries", params=query)
        print(*entry_lines(page["entries"], now, header=header), sep="\n", file=out)
        query["cursor"], header = page["cursor"], False


def _rm(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    for key in options.keys:
        service.call("DELETE", f"/v1/cache/entries/{key}")
        print(f"removed {key}", file=out)


def _evict(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    body = {**_filter(options), "all": options.all, "dry_run": options.dry_run}
    if options.bytes is not None:
        body["bytes"] = options.bytes
    result = service.call("POST", "/v1/cache/evict", json=body)
    verb = "would remove" if result["dry_run"] else "removed"
    print(f"{verb} {len(result['keys'])} entries, {result['bytes'] / 1024**2:.1f} MiB", file=out)
    if result["skipped_leased"]:
        print(f"left {result['skipped_leased']} that are in use", file=out)


def _filter(options: argparse.Namespace) -> dict[str, Any]:
    names = ("tenant", "model", "tier", "older_than", "min_bytes")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def size(text: str) -> int:
    """`500`, `64K`, `1.5GiB` in bytes."""
    number = text.lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:].isalpha() else ""
    try:
        return int(float(number.removesuffix(unit)) * _SIZE_UNITS[unit])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"not a size: {text}") from None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="conduitctl", description=(__doc__ or "").split("\n", 1)[0])
    main.add_argument("--url", default=os.environ.get("CONDUITCTL_URL", DEFAULT_URL))
    main.add_argument("--key", default=os.environ.get("CONDUITCTL_KEY"))
    verbs = main.add_subparsers(required=True, metavar="chat | cache")
    _add_chat(verbs.add_parser("chat", help="ask about images; without a question, a conversation"))
    cache = verbs.add_parser("cache", help="look at the store and clear it").add_subparsers(required=True)
    cache.add_parser("stats", help="what each tier holds").set_defaults(run=_stats)
    listing = cache.add_parser("ls", help="list entries")
    listing.set_defaults(run=_ls)
    removal = cache.add_parser("rm", help="remove entries by key")
    removal.add_argument("keys", nargs="+", metavar="KEY")
    removal.set_defaults(run=_rm)
    eviction = cache.add_parser("evict", help="remove the least recently used of what matches")
    eviction.add_argument("--bytes", type=size, help="stop when so much is freed")
    eviction.add_argument("--all", action="store_true", help="everything, if nothing else narrows it")
    eviction.add_argument("--dry-run", action="store_true")
    eviction.set_defaults(run=_evict)
    for narrowed in (listing, eviction):
        for name in ("tenant", "model", "tier"):
            narrowed.add_argument(f"--{name}")
        narrowed.add_argument("--older-than", type=float, metavar="SECONDS", help="since last use")
        narrowed.add_argument("--min-bytes", type=size)
    return main


def _add_chat(chat: argparse.ArgumentParser) -> None:
    chat.add_argument("question", nargs="*")
    chat.add_argument("-i", "--image", action="append", default=[], help="URL or file; may be given again")
    chat.add_argument("--system", help="system prompt")
    chat.add_argument("--policy")
    chat.add_argument("--refresh-ratio", type=float)
    chat.add_argument("--mode", choices=("auto", "read", "bypass", "rewrite"))
    chat.add_argument("--salt")
    chat.add_argument("--max-tokens", type=int)
    chat.set_defaults(run=_chat)


def main(arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Run one command; 0, or 1 with the reason on standard error."""
    options = parser().parse_args(arguments)
    try:
        with Service(options.url, options.key) as service:
            options.run(service, options, out or sys.stdout)
    except CommandFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
