"""A short load on a running service, and what its users saw: `bench`."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TextIO

from service.cli.chat import image_url
from service.cli.client import CommandFailed, Service

MOST_REQUESTS: Final = 10_000
MOST_USERS: Final = 64
_QUESTION: Final = "What is on this page?"


def add_bench(bench: argparse.ArgumentParser) -> None:
    """The options of `bench`."""
    bench.add_argument(
        "images", nargs="+", metavar="IMAGE", help="URL or file; every request has all of them"
    )
    bench.add_argument("--requests", type=_up_to(MOST_REQUESTS), default=32)
    bench.add_argument("--users", type=_up_to(MOST_USERS), default=4, help="requests at the same time")
    bench.add_argument("--question", default=_QUESTION)
    bench.add_argument("--max-tokens", type=int, default=32)
    bench.add_argument("--policy")
    bench.add_argument("--refresh-ratio", type=float)
    bench.set_defaults(run=_bench)


@dataclass(frozen=True, slots=True)
class Seen:
    """One answered request: seconds to its first text, tokens, images, and how many of those were hits."""

    ttft: float
    tokens: int
    images: int
    hits: int


def bench_lines(seen: Sequence[Seen], failures: Sequence[str], seconds: float) -> list[str]:
    """What is printed after `seconds` of load."""
    lines = [f"{len(seen)} answers in {seconds:.2f} s, {len(failures)} failed"]
    lines += [f"  {count} x {text}" for text, count in _counted(failures)]
    if not seen:
        return lines
    ttfts = sorted(one.ttft for one in seen)
    hits, images = sum(one.hits for one in seen), sum(one.images for one in seen)
    rate, tokens = len(seen) / seconds, sum(one.tokens for one in seen) / seconds
    return [
        *lines,
        f"throughput   {rate:.2f} requests/s, {tokens:.1f} tokens/s",
        f"first token  p50 {_quantile(ttfts, 0.5) * 1000:.1f} ms, p99 {_quantile(ttfts, 0.99) * 1000:.1f} ms",
        f"hit ratio    {hits / images:.0%} ({hits} of {images} images)",
    ]


def _bench(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    body = _body(options)
    began = time.monotonic()
    with ThreadPoolExecutor(options.users) as users:
        try:
            results = list(users.map(lambda _: _measure(service, body), range(options.requests)))
        finally:
            users.shutdown(wait=False, cancel_futures=True)  # an interrupt ends it after those under way
    seconds = time.monotonic() - began
    failures = [result for result in results if isinstance(result, str)]
    seen = [result for result in results if isinstance(result, Seen)]
    print(*bench_lines(seen, failures, seconds), sep="\n", file=out)
    if failures:
        raise CommandFailed(f"{len(failures)} of {options.requests} requests failed")


def _body(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "prompt": options.question,
        "images": [image_url(image) for image in options.images],
        "max_tokens": options.max_tokens,
        "cache": {"policy": options.policy, "refresh_ratio": options.refresh_ratio},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _measure(service: Service, body: dict[str, Any]) -> Seen | str:
    """One request; a text says why it failed."""
    began, first, report, usage = time.monotonic(), 0.0, None, None
    try:
        for chunk in service.stream("/v1/chat", body):
            report = chunk.get("kv_report", report)
            usage = chunk["usage"] or usage
            if not first and (report or _has_text(chunk)):
                first = time.monotonic() - began
    except CommandFailed as error:
        return str(error)
    if report is None or usage is None:
        return "The stream broke off."
    hits = sum(image["outcome"] == "hit" for image in report["images"])
    return Seen(first, usage["completion_tokens"], len(report["images"]), hits)


def _has_text(chunk: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in chunk["choices"])


def _counted(failures: Sequence[str]) -> list[tuple[str, int]]:
    return [(text, failures.count(text)) for text in dict.fromkeys(failures)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed (nearest rank)."""
    return ordered[math.ceil(share * len(ordered)) - 1]


def _up_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if text.isascii() and text.isdigit() and 1 <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"not a number from 1 to {most}: {text}")

    return number
