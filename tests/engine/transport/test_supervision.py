"""A worker that dies, stalls or cannot start: each stream gets one error, and another worker is started, with no more
descriptors than were kept back for it."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import EngineStopped, UnsupportedModel
from engine.messages import WORKER_DOWN, Accepted, Event, Failed, Finished, TextDelta
from engine.transport.process import LEAVE_SECONDS, ProcessClient
from engine.transport.worker_process import WorkerProcess
from tests.engine.transport.stand import (
    LAUNCH,
    READY,
    StandIn,
    ThreadedProcess,
    over_the_pipe,
    request,
)

BUSY = replace(READY, running=1, progress_seconds=100.0)


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def client(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessClient]:
    with over_the_pipe(stand_in, monkeypatch) as client:
        yield client


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), 20)  # type: ignore[arg-type]

    asyncio.run(bounded())


async def collect(client: ProcessClient, name: str) -> list[Event]:
    return [event async for event in client.submit(request(name))]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def process_of(client: ProcessClient) -> WorkerProcess:
    assert client._worker is not None
    return client._worker


def dies(client: ProcessClient, stand_in: StandIn) -> None:
    process_of(client).process.kill()


def makes_no_progress(client: ProcessClient, stand_in: StandIn) -> None:
    stand_in.status_now = BUSY


def loses_its_thread(client: ProcessClient, stand_in: StandIn) -> None:
    stand_in.status_now = replace(READY, ready=False, reasons=(WORKER_DOWN,))


def falls_silent(client: ProcessClient, stand_in: StandIn) -> None:
    stand_in.silent = True
    client._stall_after = 0.1


def speaks_gibberish(client: ProcessClient, stand_in: StandIn) -> None:
    stand_in.submitted["a"]([Gibberish()])  # type: ignore[list-item]


class Gibberish:
    """Can be sent, and not read."""

    request_id = "a"

    def __reduce__(self) -> Any:
        return int, ("no number",)


TROUBLES = {
    dies: "ended with status -9",
    makes_no_progress: "stalled",
    loses_its_thread: WORKER_DOWN,
    falls_silent: "stalled",
    speaks_gibberish: "ended with status -9",
}


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_promise_6_each_stream_of_a_worker_in_trouble_gets_one_error(
    client: ProcessClient, stand_in: StandIn, trouble: Callable[[ProcessClient, StandIn], None]
) -> None:
    async def body() -> None:
        first = process_of(client)
        streams = [asyncio.create_task(collect(client, name)) for name in ("a", "b", "c")]
        await until(lambda: len(stand_in.submitted) == 3)
        stand_in.submitted["b"]([Accepted("b", 1, 0), TextDelta("b", "x")])
        stand_in.blocks = True
        call = asyncio.create_task(client.cache.stats())
        await until(lambda: stand_in.called == 1)
        trouble(client, stand_in)
        ends = await asyncio.gather(*streams)
        stand_in.status_now, stand_in.silent, client._stall_after = READY, False, 5
        stand_in.blocked.set()
        for name, events in zip(("a", "b", "c"), ends, strict=True):
            *before, last = events
            assert isinstance(last, Failed) and (last.request_id, last.code) == (name, "engine_stopped")
            assert TROUBLES[trouble] in last.message
            assert len(before) == (2 if name == "b" else 0)
        with pytest.raises(EngineStopped):
            await call
        await until(lambda: client.status().ready)
        assert process_of(client) is not first

    run(body)


def test_what_a_worker_said_before_it_died_is_heard(client: ProcessClient, stand_in: StandIn) -> None:
    async def body() -> None:
        stream = asyncio.create_task(collect(client, "a"))
        await until(lambda: "a" in stand_in.submitted)
        finished = Finished("a", "stop", *[None] * 3)  # type: ignore[arg-type]
        stand_in.submitted["a"]([TextDelta("a", "x"), finished])
        dies(client, stand_in)
        assert await stream == [TextDelta("a", "x"), finished]

    run(body)


def test_a_worker_whose_parent_is_gone_stops_at_once(client: ProcessClient, stand_in: StandIn) -> None:
    async def body() -> None:
        dies(client, stand_in)  # the pipe ends, as it does where the parent dies
        await until(lambda: stand_in.stopped == [0.0])
        assert stand_in.hurried == 1

    run(body)


def test_a_worker_has_time_to_write_what_is_queued_when_it_leaves(
    client: ProcessClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what its requests have to end."""
    process, waits = process_of(client).process, []
    wait = process.wait

    def watched(timeout: float | None = None) -> int | None:
        waits.append(timeout)
        return wait(timeout)

    monkeypatch.setattr(process, "wait", watched)
    client._close(0.5)
    assert waits[0] == 0.5 + LEAVE_SECONDS and process.returncode == 0
    assert not client._supervisor.is_alive() and client._spare._held == []


def test_an_idle_worker_may_be_idle_for_long(client: ProcessClient, stand_in: StandIn) -> None:
    async def body() -> None:
        first = process_of(client)
        stand_in.status_now = replace(READY, progress_seconds=1000.0)
        await until(lambda: client.status().progress_seconds >= 1000)
        await asyncio.sleep(0.1)
        assert process_of(client) is first and client.status().ready

    run(body)


def test_a_silent_worker_is_not_ready(
    client: ProcessClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        monkeypatch.setattr("engine.transport.process.SILENCE_SECONDS", 0.1)
        stand_in.silent = True
        await until(lambda: client.status().reasons == ("the worker is silent",))
        assert not client.status().ready and client.status().progress_seconds > 0.1
        stand_in.silent = False
        stand_in.blocked.set()
        await until(lambda: client.status().ready)

    run(body)


def test_a_worker_that_cannot_be_started_again_is_tried_again_and_said(
    client: ProcessClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        waits: list[float] = []
        wait = client._closing.wait
        monkeypatch.setattr(client._closing, "wait", lambda seconds: (waits.append(seconds), wait(0.005))[1])
        with monkeypatch.context() as patch:
            patch.setattr("engine.transport.worker_process.subprocess.Popen", no_memory)
            dies(client, stand_in)
            await until(lambda: sum(seconds >= 1 for seconds in waits) > 6)
            assert not client.status().ready
            assert client.status().reasons == (
                "the worker cannot start: no process could be started for it (OSError)",
            )
            assert await collect(client, "a") == [Failed("a", "engine_stopped", client.status().reasons[0])]
        backoffs = [seconds for seconds in waits if seconds >= 1]
        assert backoffs[:7] == [1, 2, 4, 8, 16, 30, 30]
        await until(lambda: client.status().ready)
        waits.clear()
        with monkeypatch.context() as patch:
            patch.setattr("engine.transport.worker_process.subprocess.Popen", no_memory)
            dies(client, stand_in)
            await until(lambda: any(seconds >= 1 for seconds in waits))
        assert next(seconds for seconds in waits if seconds >= 1) == 1, "it was well in between"
        await until(lambda: client.status().ready)

    run(body)


def test_a_worker_that_hangs_while_it_loads_is_replaced(
    client: ProcessClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        wait = client._closing.wait
        monkeypatch.setattr(client._closing, "wait", lambda _: wait(0.005))
        hanging, hung = threading.Event(), []

        def hangs(*_: object) -> None:
            hung.append(1)
            hanging.wait(30)
            raise EngineStopped("let go")

        client._load_timeout = 0.05
        with monkeypatch.context() as patch:
            patch.setattr("engine.transport.child.start_worker", hangs)
            dies(client, stand_in)
            why = "the worker cannot start: it has not loaded its model within 0.05 s (CONDUIT_LOAD_TIMEOUT)"
            await until(lambda: client.status().reasons == (why,) and len(hung) > 2)
            assert not client.status().ready
            assert await collect(client, "a") == [Failed("a", "engine_stopped", why)]
        client._load_timeout = 30
        hanging.set()
        await until(lambda: client.status().ready)

    run(body)


def no_memory(*_: object, **__: object) -> None:
    raise OSError(12, "Cannot allocate memory")


def test_a_start_that_fails_is_an_error_of_ours_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = ProcessClient(["worker"], LAUNCH, 5, 30, 0)
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr("engine.transport.worker_process.subprocess.Popen", no_memory)
    with pytest.raises(EngineStopped, match="no process could be started"):
        client.start()
    assert os.listdir("/proc/self/fd") == before
    client._close(0)


def test_why_a_worker_cannot_start_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise UnsupportedModel("neither a folder nor a hub name")

    monkeypatch.setattr("engine.transport.worker_process.subprocess.Popen", ThreadedProcess)
    monkeypatch.setattr("engine.transport.child.start_worker", refused)
    client = ProcessClient(["worker"], LAUNCH, stall_after=5, load_timeout=30, picture_bytes=0)
    with pytest.raises(EngineStopped, match=r"^neither a folder nor a hub name$"):
        client.start()
    client._close(0)


# A worker that speaks the protocol and does nothing else; `sleep` holds its end of the pipe as well.
SPEAKER = """
import subprocess, sys
from multiprocessing.connection import Connection
from engine.messages import EngineInfo, EngineStatus
from engine.transport.wire import Heartbeat, Ready
pipe = Connection(int(sys.argv[1]))
pipe.recv()
subprocess.Popen(["sleep", "10"], pass_fds=[pipe.fileno()])
pipe.send(Ready(EngineInfo("m", 9, (), "", 0.1, "cpu", "float32")))
while True:
    pipe.send(Heartbeat(EngineStatus(True, (), 0.0, 0, 0)))
    if pipe.poll(0.05):
        pipe.recv()
"""


@contextmanager
def every_descriptor_taken() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_is_replaced_with_every_other_descriptor_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whatever children of its own hold the pipe that it has left."""
    monkeypatch.setattr("engine.transport.process.CHECK_SECONDS", 0.02)
    client = ProcessClient(
        [sys.executable, "-c", SPEAKER], LAUNCH, stall_after=5, load_timeout=30, picture_bytes=0
    )
    client.start()

    async def body() -> None:
        with every_descriptor_taken():
            for _ in range(2):
                first = process_of(client)
                first.process.kill()
                await until(lambda: client._worker not in (None, first) and client.status().ready)  # noqa: B023

    run(body)
    client._worker.process.kill()  # type: ignore[union-attr]
    client._close(0)
