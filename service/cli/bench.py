"""A short load on a running service, and what its users saw: `bench`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from service.cli.client import CommandFailed, Service
from service.cli.options import MaxTokens, Policy, Ratio, image_url
from service.cli.terminal import Terminal

MOST_REQUESTS: Final = 10_000
MOST_USERS: Final = 64


@dataclass(frozen=True, slots=True)
class Seen:
    """One answered request: seconds to its first text, tokens, images, and how many of those were hits."""

    ttft: float
    tokens: int
    images: int
    hits: int


def bench(
    service: Service,
    terminal: Terminal,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="URL or file; every request has all.")],
    requests: Annotated[int, typer.Option(min=1, max=MOST_REQUESTS)] = 32,
    users: Annotated[int, typer.Option(min=1, max=MOST_USERS, help="Requests at the same time.")] = 4,
    question: Annotated[str, typer.Option()] = "What is on this page?",
    max_tokens: MaxTokens = 32,
    policy: Policy = None,
    refresh_ratio: Ratio = None,
) -> None:
    """Ask again and again, and see what the users saw."""
    body = {
        "prompt": question,
        "images": [image_url(image) for image in images],
        "max_tokens": max_tokens,
        "cache": {"policy": policy, "refresh_ratio": refresh_ratio},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    with ThreadPoolExecutor(users) as pool:
        try:
            results = list(pool.map(lambda _: _measure(service, body), range(requests)))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an interrupt ends it after those under way
    took = time.monotonic() - began
    failures = [result for result in results if isinstance(result, str)]
    found = figures([result for result in results if isinstance(result, Seen)], failures, took)
    terminal.document(found)
    for line in bench_lines(found):
        terminal.line(line)
    if failures:
        raise CommandFailed(f"{len(failures)} of {requests} requests failed", "requests_failed")


def figures(seen: Sequence[Seen], failures: Sequence[str], seconds: float) -> dict[str, Any]:
    """What `seconds` of load came to; rates and times are None where nothing was answered."""
    ttfts = sorted(one.ttft for one in seen)
    return {
        "answers": len(seen),
        "seconds": seconds,
        "failures": {text: failures.count(text) for text in dict.fromkeys(failures)},
        "requests_per_second": len(seen) / seconds if seen else None,
        "tokens_per_second": sum(one.tokens for one in seen) / seconds if seen else None,
        "ttft_p50_ms": _quantile(ttfts, 0.5) * 1000 if seen else None,
        "ttft_p99_ms": _quantile(ttfts, 0.99) * 1000 if seen else None,
        "hits": sum(one.hits for one in seen),
        "images": sum(one.images for one in seen),
    }


def bench_lines(found: dict[str, Any]) -> list[str]:
    """`figures` for a person."""
    failures: dict[str, int] = found["failures"]
    lines = [f"{found['answers']} answers in {found['seconds']:.2f} s, {sum(failures.values())} failed"]
    lines += [f"  {count} x {text}" for text, count in failures.items()]
    if not found["answers"]:
        return lines
    hits, images = found["hits"], found["images"]
    return [
        *lines,
        f"throughput   {found['requests_per_second']:.2f} requests/s, {found['tokens_per_second']:.1f} tokens/s",
        f"first token  p50 {found['ttft_p50_ms']:.1f} ms, p99 {found['ttft_p99_ms']:.1f} ms",
        f"hit ratio    {hits / images:.0%} ({hits} of {images} images)",
    ]


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


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed (nearest rank)."""
    return ordered[math.ceil(share * len(ordered)) - 1]
