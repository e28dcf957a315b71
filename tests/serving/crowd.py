"""Users of a service in a process of its own: what they ask, all of them at once, and how they leave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np

from benchmarks.processes import worker_of
from demo.asking import Answer, ask
from demo.pages import draw_pages
from demo.questions import ask_list, draw_reading
from demo.scenario import page_urls
from demo.service_process import ServiceProcess
from tests.e2e.live import PATIENT

PATIENCE = 240.0
"""Seconds after which a wait gives up. Never a limit on how fast something has to be."""
CONTEXT = 32768
ENDLESS = 30_000
"""Answer tokens that no test waits for."""
END_OF_ANSWER = "2"
"""The token that ends an answer, for requests that must not come to one."""


class Service(ServiceProcess):
    """With what the tests need to know of its processes."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def worker(self) -> int:
        """The process id of the worker."""
        return worker_of(self.pid)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.01)


def questions(url: str, count: int, seed: int, max_tokens: int = 12, edge: int = 112) -> list[dict[str, Any]]:
    """Requests about two of eight pages each, every one behind another system prompt. Equal seeds ask the same."""
    rng = np.random.default_rng(seed)
    known = draw_pages(rng, 8)
    made = []
    for _ in range(count):
        pages = tuple(known[i] for i in rng.choice(len(known), 2, replace=False).tolist())
        system, reading = draw_reading(rng)
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": address}} for address in page_urls(pages, url, edge)
        ]
        parts.append({"type": "text", "text": ask_list(rng, pages, reading, 0, by_order=True).text})
        messages = [{"role": "system", "content": system}, {"role": "user", "content": parts}]
        made.append({"messages": messages, "max_tokens": max_tokens})
    return made


def endless(asked: dict[str, Any]) -> dict[str, Any]:
    """The same question with an answer that nobody lives to see the end of."""
    return {**asked, "max_tokens": ENDLESS, "logit_bias": {END_OF_ANSWER: -100}}


def together(service: ServiceProcess, asked: Sequence[dict[str, Any]]) -> list[Answer]:
    """Ask everything at the same moment, each over a connection of its own."""
    start = threading.Barrier(len(asked))

    def one(body: dict[str, Any]) -> Answer:
        with httpx.Client(base_url=service.url, timeout=PATIENT, trust_env=False) as client:
            start.wait()
            return ask(client, body)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, asked))


@contextmanager
def streaming(api: httpx.Client, asked: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The `data:` lines of a streamed answer, from its first piece of text on; leaving it closes the connection.
    AssertionError where none came."""
    with api.stream("POST", "/v1/chat", json={**asked, "stream": True}) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        first = next((line for line in lines if '"content":"' in line and '"content":""' not in line), None)
        assert first is not None, "the stream ended before any text"
        yield lines


@contextmanager
def asking(api: httpx.Client, asked: dict[str, Any]) -> Iterator[socket.socket]:
    """A request that was sent and whose answer is not read; leaving it closes the connection."""
    body = json.dumps(asked).encode()
    fields = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    head = f"POST /v1/chat HTTP/1.1\r\n{fields}\r\n\r\n".encode()
    with socket.create_connection((api.base_url.host, api.base_url.port or 80)) as connection:
        connection.sendall(head + body)
        yield connection


def metric(api: httpx.Client, name: str) -> float:
    """One figure of `/metrics`, 0 where it has not been counted yet."""
    for line in api.get("/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def running(api: httpx.Client) -> float:
    """Requests that the engine works on."""
    return metric(api, "conduit_num_requests_running")


def nothing_is_left(api: httpx.Client) -> None:
    """No slot, no lease, nobody waiting, and the service takes requests."""
    until(lambda: running(api) == metric(api, "conduit_num_requests_waiting") == 0, "nobody runs or waits")
    until(lambda: api.get("/v1/cache/stats").json()["leases"] == 0, "no entry is in use")
    well = {"status": "ready", "reasons": [], "degraded": []}
    until(lambda: bool(api.get("/readyz").json() == well), "it takes requests and the store is well")


def ends_with_one_error(lines: Sequence[str], code: str) -> None:
    """The rest of a stream that was cut off by a failure: text, one error event, the end."""
    *text, error, done = lines
    assert done == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["choices"] for line in text)
    body = json.loads(error.removeprefix("data: "))
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code
