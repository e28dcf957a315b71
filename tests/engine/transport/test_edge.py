"""What crosses the engine's edge is an error of the engine's tree, whatever went wrong below."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import engine.errors
from engine.client import CacheAdmin, EngineClient
from engine.errors import EngineError, EngineStopped, InternalError, StoreFailed
from engine.messages import CacheOptions, Event, Failed, ImageInput, TextDelta
from store.errors import InvalidKey, Rejected, StoreClosed, TierFull, TierUnavailable
from store.types import EntryFilter, VerifyProgress
from tests.engine.transport.stand import TRANSPORTS, StandIn, over_the_pipe, request

KEY = "0" * 64


class Stubborn(Exception):
    """Cannot be sent anywhere."""

    def __init__(self) -> None:
        super().__init__("stubborn")
        self.lock = threading.Lock()


FAULTS: dict[str, Callable[[], BaseException]] = {
    "an I/O error": lambda: OSError(5, "Input/output error", "/somewhere/data.mdb"),
    "a value": lambda: ValueError("Redis URL must specify one of the following schemes"),
    "a key": lambda: KeyError("records"),
    "no memory": MemoryError,
    "too deep": RecursionError,
    "one that cannot be pickled": Stubborn,
    "a closed store": lambda: StoreClosed("used after close"),
    "an invalid key": lambda: InvalidKey("not a key"),
    "a rejected record": lambda: Rejected("corrupt", "at byte 7"),
    "a full tier": lambda: TierFull("full", "no room"),
    "a tier that is gone": lambda: TierUnavailable("timeout"),
}


async def all_of(reports: Any) -> list[VerifyProgress]:
    return [report async for report in reports]


CALLS: dict[str, Callable[[CacheAdmin], Awaitable[object]]] = {
    "stats": lambda cache: cache.stats(),
    "entries": lambda cache: cache.entries(EntryFilter(), None, 10),
    "entry": lambda cache: cache.entry(KEY),
    "delete": lambda cache: cache.delete(KEY),
    "evict": lambda cache: cache.evict(EntryFilter(), None, False),
    "clear": lambda cache: cache.clear(None, True),
    "lookup": lambda cache: cache.lookup("tenant", b"", 1, 1),
    "pin": lambda cache: cache.pin(KEY, None),
    "unpin": lambda cache: cache.unpin(KEY),
    "quotas": lambda cache: cache.quotas(),
    "set_quota": lambda cache: cache.set_quota("tenant", 1),
    "verify": lambda cache: all_of(cache.verify()),
    "compact": lambda cache: cache.compact(),
}


def test_every_call_of_an_operator_is_walked() -> None:
    assert CALLS.keys() == {name for name in vars(CacheAdmin) if not name.startswith("_")}


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture(params=TRANSPORTS)
def client(
    request: pytest.FixtureRequest, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineClient]:
    with TRANSPORTS[request.param](stand_in, monkeypatch) as client:
        yield client


@pytest.fixture
def piped(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineClient]:
    with over_the_pipe(stand_in, monkeypatch) as client:
        yield client


def run(body: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(body, 20)

    return asyncio.run(bounded())


def test_every_call_of_the_operator_is_tried() -> None:
    assert set(CALLS) == {name for name in vars(CacheAdmin) if not name.startswith("_")}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_foreign_error_leaves_any_operator_s_call(
    client: EngineClient, stand_in: StandIn, fault: str
) -> None:
    async def body() -> None:
        for name, call in CALLS.items():
            stand_in.fault = FAULTS[fault]()
            with pytest.raises((StoreFailed, InternalError)) as raised:
                await call(client.cache)
            assert raised.value.message and "Error" not in raised.value.message, name
        stand_in.fault, stand_in.answer = None, ("still there",)
        assert await client.cache.quotas() == ("still there",)

    run(body())


def test_every_error_of_the_tree_crosses_a_process_as_it_is() -> None:
    classes = [c for _, c in inspect.getmembers(engine.errors, inspect.isclass) if issubclass(c, EngineError)]
    assert len(classes) > 10
    assert len({c.code for c in classes if c is not EngineError}) == len(classes) - 1
    for kind in classes:
        there = pickle.loads(pickle.dumps(kind("as it is")))
        assert (type(there), there.message, there.code) == (kind, "as it is", kind.code)


def test_an_answer_or_a_question_that_cannot_be_sent_is_an_error_and_not_a_wait(
    piped: EngineClient, stand_in: StandIn
) -> None:
    async def body() -> None:
        stand_in.answer = threading.Lock()
        with pytest.raises(InternalError, match="could not be sent"):
            await piped.cache.stats()
        with pytest.raises(InternalError, match="could not be sent"):
            await piped.cache.entry(threading.Lock())  # type: ignore[arg-type]
        asked = request(cache=CacheOptions(options={"x": threading.Lock()}))
        assert await collect(piped, asked) == [Failed("r", "internal_error", "the request could not be sent")]
        stand_in.answer = ("still there",)
        assert await piped.cache.quotas() == ("still there",)

    run(body())


async def collect(client: EngineClient, asked: Any) -> list[Event]:
    return [event async for event in client.submit(asked)]


def test_pixels_of_a_request_that_could_not_be_sent_are_sent_with_the_next(
    piped: EngineClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[bytes] = []
    submit = stand_in.submit
    monkeypatch.setattr(
        stand_in, "submit", lambda asked, emit: (arrived.append(asked.images[0].pixels), submit(asked, emit))
    )
    images = (ImageInput(b"d" * 32, 1, 1, b"rgb"),)

    async def body() -> None:
        asked = replace(request(cache=CacheOptions(options={"x": threading.Lock()})), images=images)
        assert isinstance((await collect(piped, asked))[-1], Failed)
        stream = asyncio.create_task(collect(piped, replace(request(), images=images)))
        await asyncio.to_thread(stand_in.entered.acquire)
        stand_in.submitted["r"]([Failed("r", "aborted", "over")])
        await stream
        assert arrived == [b"rgb"]

    run(body())


def test_an_operator_s_call_that_takes_long_holds_up_no_request(
    client: EngineClient, stand_in: StandIn
) -> None:
    async def body() -> None:
        stand_in.blocks = True
        call = asyncio.create_task(client.cache.stats())
        while not stand_in.called:
            await asyncio.sleep(0.005)
        stream = asyncio.create_task(collect(client, request()))
        assert await asyncio.to_thread(stand_in.entered.acquire, timeout=10)
        stand_in.submitted["r"]([Failed("r", "aborted", "over")])
        assert len(await stream) == 1 and not call.done()
        stand_in.blocked.set()
        await call

    run(body())


@pytest.mark.parametrize(("given", "sent"), [("00-mine", "00-mine"), (None, "00-current")])
def test_a_request_goes_on_with_its_own_trace_or_the_current_one(
    client: EngineClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, given: str | None, sent: str
) -> None:
    for module in ("inprocess", "process"):
        monkeypatch.setattr(f"engine.transport.{module}.current_traceparent", lambda: "00-current")

    async def body() -> None:
        stream = asyncio.create_task(collect(client, request(traceparent=given)))
        await asyncio.to_thread(stand_in.entered.acquire)
        stand_in.submitted["r"]([Failed("r", "aborted", "over")])
        await stream
        assert [asked.traceparent for asked in stand_in.requests] == [sent]
        assert client._streams._open == {}  # type: ignore[attr-defined]

    run(body())


@pytest.mark.parametrize("ends", [True, False])
def test_a_request_is_aborted_where_its_stream_is_left_and_only_there(
    client: EngineClient, stand_in: StandIn, ends: bool
) -> None:
    async def body() -> None:
        stream = client.submit(request())
        first = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(stand_in.entered.acquire)
        last = Failed("r", "aborted", "over")
        stand_in.submitted["r"]([last if ends else TextDelta("r", "x")])
        await first
        await stream.aclose()
        stand_in.answer = ()
        await client.cache.quotas()  # behind it on the pipe
        assert stand_in.aborted == ([] if ends else ["r"])
        assert client._streams._open == {}  # type: ignore[attr-defined]

    run(body())


def test_events_that_cannot_be_sent_end_their_stream_with_one_error(
    piped: EngineClient, stand_in: StandIn
) -> None:
    async def body() -> None:
        stream = asyncio.create_task(collect(piped, request()))
        await asyncio.to_thread(stand_in.entered.acquire)
        stand_in.submitted["r"]([TextDelta("r", threading.Lock())])  # type: ignore[arg-type]
        assert await stream == [Failed("r", "internal_error", "its events could not be sent")]

    run(body())


PROGRESS = VerifyProgress("lmdb", 1, 4, 0, {})


def test_a_check_that_ends_early_says_so(client: EngineClient, stand_in: StandIn) -> None:
    async def body() -> None:
        stand_in.reports = (PROGRESS,)
        reports = client.cache.verify()
        assert await anext(reports) == PROGRESS
        with pytest.raises(StoreFailed, match="before all was read"):
            await anext(reports)

    run(body())


def test_of_a_hundred_checks_at_once_each_ends_with_done_or_one_error(
    client: EngineClient, stand_in: StandIn
) -> None:
    begun: set[int] = set()

    def note(number: int, all_begun: asyncio.Event) -> None:
        begun.add(number)
        if len(begun) == 100:
            all_begun.set()

    async def to_the_end(number: int, all_begun: asyncio.Event) -> str:
        seen: list[VerifyProgress] = []
        try:
            async for report in client.cache.verify():
                seen.append(report)
                note(number, all_begun)
                await all_begun.wait()
        except StoreFailed as error:
            note(number, all_begun)
            return error.message
        assert seen[-1].done and len(seen) == 4
        return "done"

    async def body() -> None:
        stand_in.reports = (PROGRESS, PROGRESS, PROGRESS, VerifyProgress("lmdb", 4, 4, 0, {}, done=True))
        all_begun = asyncio.Event()
        ends = await asyncio.gather(*(to_the_end(number, all_begun) for number in range(100)))
        assert ends.count("done") == 64
        assert set(ends) == {"done", "This check was given up for others that were begun since."}

    run(body())


def test_leaving_a_check_of_a_worker_that_died_is_no_error(piped: EngineClient, stand_in: StandIn) -> None:
    async def body() -> None:
        stand_in.reports = (PROGRESS, PROGRESS)
        reports = piped.cache.verify()
        await anext(reports)
        piped._trouble = "it died"  # type: ignore[attr-defined]
        await reports.aclose()
        with pytest.raises(EngineStopped):
            await piped.cache.stats()
        piped._trouble = None  # type: ignore[attr-defined]

    run(body())


def test_a_store_that_cannot_be_closed_does_not_keep_anybody(client: EngineClient, stand_in: StandIn) -> None:
    stand_in.fault = OSError(28, "No space left on device")
    run(client.close(0.25))
    assert stand_in.stopped == [0.25], "what runs has so many seconds to end"
