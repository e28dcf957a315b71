"""TTFT over real HTTP: a service in a process of its own, images by URL, full prefill and a warm request in turn."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.result import NotMeasured
from benchmarks.ttft_engine import QUESTION, SYSTEM
from demo.asking import Answer, Refused, ask
from demo.pages import MAX_PAGES, draw_pages
from demo.scenario import page_urls
from demo.service_process import ServiceDidNotStart, ServiceProcess

TIMEOUT = 600.0


def over_http(
    folder: Path, model: Path, arguments: argparse.Namespace, count: int, edge: int
) -> dict[str, dict[str, float]]:
    """Seconds to the first token as the client sees it, and of the same requests inside the engine. Raises
    `NotMeasured`."""
    work = folder / f"http-{count}"
    work.mkdir()
    threads = str(arguments.threads) if arguments.threads else None
    settings = {"model": str(model), "dtype": arguments.dtype, "device": arguments.device}
    if threads is not None:
        settings["threads"] = threads
    try:
        with ServiceProcess(work, **settings) as service, _client(service) as client:
            answers = _alternate(client, _body(service.url, count, edge, arguments.ratio), arguments.rounds)
    except (ServiceDidNotStart, Refused, httpx.HTTPError) as error:
        raise NotMeasured(f"over HTTP: {error}") from error
    figures: dict[str, dict[str, float]] = {}
    for name, found in answers.items():
        figures[name] = _spread([answer.ttft for answer in found])
        figures[f"{name}_in_engine"] = _spread([answer.engine_ttft for answer in found])
    return figures


def _alternate(client: httpx.Client, body: dict[str, Any], rounds: int) -> dict[str, list[Answer]]:
    bodies = {"full": {**body, "cache": {"policy": "full", "chain": "off"}}, "warm": body}
    answers: dict[str, list[Answer]] = {name: [] for name in bodies}
    for number in range(rounds + 1):
        for name, asked in bodies.items():
            answer = ask(client, asked)
            if number:
                answers[name].append(answer)
    if any(image["outcome"] != "hit" for answer in answers["warm"] for image in answer.report["images"]):
        raise NotMeasured("an image that was seen before did not hit")
    return answers


def _client(service: ServiceProcess) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=TIMEOUT, trust_env=False)


def _body(base_url: str, count: int, edge: int, ratio: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    pages = [page for _ in range(0, count, MAX_PAGES) for page in draw_pages(rng, MAX_PAGES)][:count]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in page_urls(pages, base_url, edge)]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [*images, {"type": "text", "text": QUESTION}]},
    ]
    # One token: the end of the answer is the first that a client sees of it, whatever the token's text.
    return {"messages": messages, "max_tokens": 1, "cache": {"refresh_ratio": ratio, "chain": "off"}}


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}
