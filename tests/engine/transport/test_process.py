"""A worker in a process of its own: same answers, and what happens when it dies or stands still."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import EngineStopped
from engine.messages import Event, Failed, Finished, GenerateRequest, Sampling, TextDelta
from engine.settings import Limits, ModelSettings
from engine.transport.process import ProcessClient
from engine.transport.wire import Launch
from store.settings import StoreSettings
from store.types import EntryFilter
from tests.engine.asking import IMAGES, ask

COMMAND = [sys.executable, "-m", "service", "worker"]
PATIENCE = 120


def launch(model: Path, folder: Path | None = None) -> Launch:
    return Launch(
        ModelSettings(str(model), device="cpu"), StoreSettings(path=folder, memory_bytes=1 << 24), Limits()
    )


@pytest.fixture(scope="module")
def client(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessClient]:
    here = launch(tiny_path, tmp_path_factory.mktemp("store"))
    client = ProcessClient(COMMAND, here, stall_after=5, load_timeout=60, picture_bytes=1 << 20)
    client.start()
    yield client
    asyncio.run(client.close(0))


async def collect(client: ProcessClient, request: GenerateRequest) -> list[Event]:
    return [event async for event in client.submit(request)]


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), PATIENCE)


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE))  # type: ignore[arg-type]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def worker_pid(client: ProcessClient) -> int:
    assert client._worker is not None
    return client._worker.process.pid


def test_answers_and_admin_calls_cross_the_pipe(client: ProcessClient) -> None:
    async def body() -> None:
        cold = await collect(client, ask("a"))
        warm = await collect(client, ask("b"))
        assert text(cold) == text(warm)
        end = warm[-1]
        assert isinstance(end, Finished) and [i.outcome for i in end.report.images] == ["hit", "hit"]
        page = await client.cache.entries(EntryFilter(), None, 10)
        assert {entry.key for entry in page.entries} == {image.key for image in end.report.images}
        assert (await client.cache.stats()).compiles == 2
        assert await client.cache.delete(page.entries[0].key)
        assert await client.cache.entry(page.entries[0].key) is None
        assert (await client.cache.evict(EntryFilter(), None, True)).dry_run
        left = page.entries[1]
        image = next(i for i in IMAGES if (i.width, i.height) == (left.width, left.height))
        found = await client.cache.lookup("tenant", image.digest, image.width, image.height)
        assert found is not None and found.key == left.key
        assert await client.cache.lookup("other", image.digest, image.width, image.height) is None
        assert await client.cache.pin(left.key, None) and await client.cache.unpin(left.key)
        await client.cache.set_quota("tenant", 1 << 30)
        assert [quota.tenant for quota in await client.cache.quotas()] == ["tenant"]
        scrub = [progress async for progress in client.cache.verify()]
        assert scrub[-1].done and scrub[-1].checked >= 1 and not scrub[-1].removed
        assert "lmdb" in await client.cache.compact()
        assert left.key in (await client.cache.clear(None, True)).keys
        assert client.status().ready and client.info.policies

    run(body)


def test_closing_the_stream_aborts_the_request(client: ProcessClient) -> None:
    async def body() -> None:
        stream = client.submit(ask("long", sampling=Sampling(max_tokens=3000)))
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await stream.aclose()  # type: ignore[attr-defined]
        await until(lambda: client.status().running == 0)

    run(body)


def test_f14_a_killed_worker_ends_its_streams_and_is_replaced(client: ProcessClient) -> None:
    async def body() -> None:
        stream = client.submit(ask("doomed", sampling=Sampling(max_tokens=3000)))
        events = []
        doomed = worker_pid(client)
        async for event in stream:
            if isinstance(event, TextDelta) and not any(isinstance(e, TextDelta) for e in events):
                os.kill(doomed, signal.SIGKILL)
            events.append(event)
        assert isinstance(events[-1], Failed) and events[-1].code == "engine_stopped"
        assert sum(isinstance(event, Failed | Finished) for event in events) == 1
        assert not client.status().ready and client.status().reasons
        refused = await collect(client, ask("too early"))
        assert isinstance(refused[-1], Failed) and refused[-1].code == "engine_stopped"
        with pytest.raises(EngineStopped):
            await client.cache.stats()
        await until(lambda: client.status().ready)
        assert isinstance((await collect(client, ask("next")))[-1], Finished)

    run(body)


@pytest.mark.slow
def test_f14_a_stalled_worker_is_seen_and_replaced(client: ProcessClient) -> None:
    async def body() -> None:
        stuck = worker_pid(client)
        os.kill(stuck, signal.SIGSTOP)
        await until(lambda: not client.status().ready)
        ended = await collect(client, ask("stuck"))
        assert isinstance(ended[-1], Failed)
        await until(lambda: client.status().ready and worker_pid(client) != stuck)
        assert isinstance((await collect(client, ask("after")))[-1], Finished)

    run(body)


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    client = ProcessClient(
        COMMAND, launch(tmp_path / "nothing"), stall_after=5, load_timeout=30, picture_bytes=1 << 20
    )
    with pytest.raises(EngineStopped, match="neither a folder nor a hub name"):
        client.start()
