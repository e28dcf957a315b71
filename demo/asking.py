"""A client of `POST /v1/chat` that shows the answer as it streams and keeps the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx


class Refused(Exception):
    """The service answered with an error, before or inside the stream. The message is the service's own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`ttft` is the time from sending the request to the first piece of text, `total` to the end, in seconds; `report`
    is the service's `kv_report`, `usage` its token counts."""

    text: str
    ttft: float
    total: float
    report: dict[str, Any]
    usage: dict[str, Any]

    @property
    def engine_ttft(self) -> float:
        """The same as the engine saw it, from the request's arrival there, in seconds."""
        return float(self.report["timings"]["ttft_ms"]) / 1000

    def outcomes(self) -> dict[str, int]:
        """Images by what happened to them: `{"hit (disk)": 3, "miss": 1}`."""
        counts: dict[str, int] = {}
        for image in self.report["images"]:
            name = image["outcome"] if image["tier"] is None else f"{image['outcome']} ({image['tier']})"
            counts[name] = counts.get(name, 0) + 1
        return counts


def ask(
    client: httpx.Client, body: Mapping[str, Any], show: Callable[[str], None] = lambda text: None
) -> Answer:
    """Send `body` (without its stream fields) and stream the answer; `show` gets each piece of text as it arrives.

    Raises `Refused`, or `httpx.TransportError` where the service is gone.
    """
    began = time.perf_counter()
    first: float | None = None
    text: list[str] = []
    report: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    for chunk in _chunks(client, body):
        usage = chunk.get("usage") or usage
        report = chunk.get("kv_report") or report
        piece = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
        if piece:
            first = first or time.perf_counter()
            text.append(piece)
            show(piece)
        elif report and first is None:
            # An answer without text: its end is the first that is seen of it.
            first = time.perf_counter()
    ended = time.perf_counter()
    return Answer("".join(text), (first or ended) - began, ended - began, report, usage)


def _chunks(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat", json=asked) as response:
        if response.status_code != 200:
            response.read()
            raise Refused(_error_text(response.json()))
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            # Blank lines end an event, lines that begin with a colon are pings.
            if data and not data.startswith(":"):
                yield _checked(json.loads(data))
    raise Refused("the stream broke off")


def _checked(chunk: dict[str, Any]) -> dict[str, Any]:
    if chunk.get("error"):
        raise Refused(_error_text(chunk))
    return chunk


def _error_text(body: dict[str, Any]) -> str:
    error = body["error"]
    return f"{error['message']} ({error['code']})"
