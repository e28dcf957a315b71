"""Pixels on their way: neither end of the pipe, nor a stream that waits for its events, holds what has gone on. With
the collector of cycles off."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo.random_model import TINY, TOKEN_EDGE, write_random_model
from engine.client import EngineClient
from engine.messages import Failed, Finished, GenerateRequest, ImageInput, Sampling
from engine.settings import Limits, ModelSettings
from engine.transport.process import ProcessClient
from engine.transport.wire import Launch
from store.records.keys import pixel_digest
from store.settings import StoreSettings
from tests.engine.conftest import user
from tests.engine.transport.stand import TRANSPORTS, StandIn

PIXELS = 3 * 64 * 64


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture(params=TRANSPORTS)
def client(
    request: pytest.FixtureRequest, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineClient]:
    with TRANSPORTS[request.param](stand_in, monkeypatch, picture_bytes=0) as client:
        yield client


def test_a_stream_that_waits_holds_no_pixels_and_neither_does_the_way(
    client: EngineClient, stand_in: StandIn
) -> None:
    pixels = os.urandom(PIXELS)
    before = sys.getrefcount(pixels)
    arrived: list[bytes] = []
    submit = stand_in.submit

    def seen(request: GenerateRequest, emit: Any) -> None:
        arrived.append(request.images[0].pixels)
        submit(request, emit)

    stand_in.submit = seen  # type: ignore[method-assign]

    async def body() -> None:
        stream = client.submit(GenerateRequest("r", "t", (), (ImageInput(b"d" * 32, 64, 64, pixels),)))
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: bool(arrived))
        there = arrived.pop()
        assert there == pixels
        if there is pixels:  # on a thread of this process
            del there
            await until(lambda: sys.getrefcount(pixels) == before)
        else:
            await until(lambda: sys.getrefcount(pixels) == before)
            await until(lambda: sys.getrefcount(there) == 2)
        stand_in.submitted["r"]([Failed("r", "aborted", "over")])
        assert await first == Failed("r", "aborted", "over")

    asyncio.run(asyncio.wait_for(body(), 20))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


COLLECTOR_OFF = """
import gc, sys
from service.__main__ import run_worker
gc.disable()
sys.exit(run_worker(int(sys.argv[1])))
"""
EDGE, IMAGES, ROUNDS = 1600, 4, 12


@pytest.mark.slow
def test_h6_a_worker_stays_as_large_as_it_was_whatever_pixels_pass_through_it(tmp_path: Path) -> None:
    """Requests of 4 x 2.5 megapixels, none of which it may keep, with its collector of cycles off."""
    shape = replace(TINY, max_pixels=TOKEN_EDGE**2 * 64)
    model = write_random_model(tmp_path / "model", shape)
    launch = Launch(ModelSettings(str(model), device="cpu"), StoreSettings(decoded_bytes=0), Limits())
    client = ProcessClient(
        [sys.executable, "-c", COLLECTOR_OFF], launch, stall_after=30, load_timeout=60, picture_bytes=0
    )
    client.start()

    async def body() -> list[int]:
        sizes = []
        for round in range(ROUNDS):
            *_, last = [event async for event in client.submit(large(round))]
            assert isinstance(last, Finished)
            assert client._worker is not None
            sizes.append(resident(client._worker.process.pid))
        return sizes

    try:
        sizes = asyncio.run(body())
    finally:
        client._close(0)
    request = 3 * EDGE * EDGE * IMAGES
    assert max(sizes[4:]) - max(sizes[:4]) < request, [size >> 20 for size in sizes]


def large(seed: int) -> GenerateRequest:
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(IMAGES):
        pixels = rng.integers(0, 256, (EDGE, EDGE, 3), np.uint8).tobytes()
        images.append(ImageInput(pixel_digest(EDGE, EDGE, pixels), EDGE, EDGE, pixels))
    return GenerateRequest(f"r{seed}", "t", (user(0, 1, 2, 3, "K"),), tuple(images), Sampling(max_tokens=2))


def resident(pid: int) -> int:
    """Bytes of memory of its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) * 1024
