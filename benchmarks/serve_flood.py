"""Health while it is hardest to answer: many clients send large pictures and one image host never answers."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import numpy as np
from PIL import Image

from benchmarks.result import NotMeasured
from benchmarks.serve_load import JSON, TIMEOUT, spread

EDGE = 2000  # 4 megapixels
PICTURES = 32  # all different: a repeated upload is not decoded again


async def flood(base_url: str, clients: int, rounds: int) -> dict[str, Any]:
    """Figures of `/livez` while `clients` send `rounds` 4-megapixel pictures each. Raises `NotMeasured`."""
    bodies = [picture_body(seed) for seed in range(PICTURES)]
    probe = Probe(base_url)
    timeout = httpx.Timeout(TIMEOUT, pool=None)
    async with (
        hanging_host() as url,
        httpx.AsyncClient(base_url=base_url, timeout=timeout, trust_env=False) as client,
    ):
        stuck = asyncio.create_task(client.post("/v1/chat", json=question(url)))
        probe.start()
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(_send(client, bodies[number % PICTURES], rounds) for number in range(clients))
        )
        seconds = time.perf_counter() - began
        await asyncio.to_thread(probe.stop)
        if stuck.done():
            raise NotMeasured("the request to the host that hangs ended before the others")
        stuck.cancel()
        with suppress(asyncio.CancelledError):
            await stuck
    statuses = [status for answer in answers for status in answer]
    return {
        "clients": clients,
        "pictures": len(statuses),
        "errors": sum(status != 200 for status in statuses) + probe.failures,
        "seconds": round(seconds, 3),
        "livez_answers": len(probe.taken),
        "livez_ms": spread(probe.taken),
    }


class Probe:
    """Asks `/livez` over and over on a thread of its own, one connection, until stopped."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe")
        self.taken: list[float] = []
        self.failures = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._base_url, timeout=TIMEOUT, trust_env=False) as client:
            while not self._stopped.wait(0.01):
                began = time.perf_counter()
                self.failures += client.get("/livez").status_code != 200
                self.taken.append(time.perf_counter() - began)


@asynccontextmanager
async def hanging_host() -> AsyncIterator[str]:
    """The URL of a picture whose host takes the request and says nothing."""
    release = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/picture.png"
    finally:
        release.set()
        server.close()


def picture_body(seed: int) -> bytes:
    """A request with a picture of noise, as JPEG: about as hard to decode as pictures get."""
    noise = np.random.default_rng(seed).integers(0, 256, (EDGE, EDGE, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, format="JPEG", quality=50)
    return json.dumps(
        question("data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode())
    ).encode()


def question(image: str) -> dict[str, Any]:
    return {"prompt": "What is on the page?", "images": [image], "max_tokens": 1}


async def _send(client: httpx.AsyncClient, body: bytes, rounds: int) -> list[int]:
    """Statuses of `rounds` requests, one after the other; 0 for a connection that failed."""
    statuses = []
    for _ in range(rounds):
        try:
            statuses.append((await client.post("/v1/chat", content=body, headers=JSON)).status_code)
        except httpx.TransportError:
            statuses.append(0)
    return statuses
