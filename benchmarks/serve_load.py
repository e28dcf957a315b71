"""Users of the serving benchmark: streamed requests in closed loops, and what their clocks say.

Nothing is parsed while the clock runs. A user notes when bytes arrive; chunks are read out of them afterwards, so that
32 users on one event loop cost the measured service as little as possible.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
import numpy as np

TIMEOUT = 300.0
JSON = {"content-type": "application/json"}


class BadAnswer(Exception):
    """An answer that is not the one that was asked for: another status, an error event, no end, an unexpected miss."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request body, ready to be sent, and the outcome of each of its images."""

    body: bytes
    outcomes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """What a user saw of one request. `pieces` are bytes with the time of their arrival; times are `perf_counter`'s."""

    asked: Asked
    status: int
    began: float
    pieces: tuple[tuple[float, bytes], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request, in seconds. `gaps` lie between two pieces of text; `engine_ttft` is the engine's own time
    to the first token, its queue included; the front end's `overhead` is the rest of `ttft`."""

    ttft: float
    total: float
    gaps: tuple[float, ...]
    tokens: int
    engine_ttft: float

    @property
    def overhead(self) -> float:
        return self.ttft - self.engine_ttft


@dataclass(frozen=True, slots=True)
class Round:
    """All requests of one round, and the seconds from the first one's start to the last one's end."""

    samples: tuple[Sample, ...]
    errors: tuple[str, ...]
    seconds: float

    @classmethod
    def of(cls, recordings: Sequence[Recording | str], seconds: float) -> Self:
        """Read what was recorded; a text is a request that failed on the way."""
        samples: list[Sample] = []
        errors: list[str] = []
        for recording in recordings:
            try:
                if isinstance(recording, str):
                    raise BadAnswer(recording)
                samples.append(read(recording))
            except BadAnswer as error:
                errors.append(str(error))
        return cls(tuple(samples), tuple(errors), seconds)

    @property
    def tokens_per_second(self) -> float:
        return sum(sample.tokens for sample in self.samples) / self.seconds

    def figures(self) -> dict[str, Any]:
        """What is reported; times in milliseconds."""
        samples = self.samples
        return {
            "requests": len(samples),
            "errors": len(self.errors),
            "seconds": round(self.seconds, 3),
            "requests_per_second": len(samples) / self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "ttft_ms": spread([sample.ttft for sample in samples]),
            "itl_ms": spread([gap for sample in samples for gap in sample.gaps]),
            "engine_ttft_ms": spread([sample.engine_ttft for sample in samples]),
            "front_end_overhead_ms": spread([sample.overhead for sample in samples]),
        }


async def drive(base_url: str, users: int, requests: Sequence[Asked]) -> Round:
    """`users` ask at the same time, each the next of `requests` as soon as its last one was answered."""
    waiting = iter(requests)
    seen: list[Recording | str] = []

    async def user(client: httpx.AsyncClient) -> None:
        seen.extend([await record(client, asked) for asked in waiting])

    limits = httpx.Limits(max_connections=users, max_keepalive_connections=users)
    async with httpx.AsyncClient(
        base_url=base_url, timeout=TIMEOUT, limits=limits, trust_env=False
    ) as client:
        began = time.perf_counter()
        await asyncio.gather(*(user(client) for _ in range(users)))
        seconds = time.perf_counter() - began
    return Round.of(seen, seconds)


async def record(client: httpx.AsyncClient, asked: Asked) -> Recording | str:
    """Send one request and note what arrives; a text where the connection failed."""
    began = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/chat", content=asked.body, headers=JSON) as response:
            pieces = [(time.perf_counter(), piece) async for piece in response.aiter_raw()]
    except httpx.TransportError as error:
        return f"the connection failed: {type(error).__name__}"
    return Recording(asked, response.status_code, began, tuple(pieces))


def read(recording: Recording) -> Sample:
    """Raises `BadAnswer`."""
    if recording.status != 200:
        raise BadAnswer(f"status {recording.status}")
    began, times = recording.began, []
    usage: dict[str, Any] = {}
    report: dict[str, Any] = {}
    ended = 0.0
    for at, chunk in chunks(recording.pieces):
        ended = at
        usage = chunk.get("usage") or usage
        report = chunk.get("kv_report") or report
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            times.append(at)
    outcomes = tuple(image["outcome"] for image in report["images"])
    if outcomes != recording.asked.outcomes or report["fallback"] is not None:
        raise BadAnswer(f"images were {outcomes}, not {recording.asked.outcomes}")
    # An answer without text: its end is the first that is seen of it.
    first = times[0] if times else ended
    gaps = tuple(after - before for before, after in itertools.pairwise(times))
    engine_ttft = report["timings"]["ttft_ms"] / 1000
    return Sample(first - began, ended - began, gaps, usage["completion_tokens"], engine_ttft)


def chunks(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The chunks of a stream, each with the time at which its last byte arrived. Raises `BadAnswer`."""
    rest = b""
    for at, piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if data.startswith(b":"):
                continue  # a ping
            chunk = json.loads(data)
            if "error" in chunk:
                raise BadAnswer(f"an error event: {chunk['error']['code']}")
            yield at, chunk
    raise BadAnswer("the stream broke off")


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds; empty where nothing was seen."""
    if not seconds:
        return {}
    p50, p99 = np.percentile(seconds, (50, 99)) * 1000
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}
