"""Events from a worker's thread to the event loops that wait for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.messages import Accepted, Event, Failed, TextDelta
from engine.transport.streams import Streams


def hand_over(streams: Streams, *happened: Event) -> None:
    """As a worker does: from a thread of its own."""
    thread = threading.Thread(target=streams.hand_over, args=(happened,))
    thread.start()
    thread.join()


def test_each_event_reaches_its_stream_in_order_and_the_loop_is_woken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        streams, loop = Streams(), asyncio.get_running_loop()
        first, second = streams.open("a"), streams.open("b")
        wakes = 0
        wake = loop.call_soon_threadsafe

        def counted(*call: object) -> object:
            nonlocal wakes
            wakes += 1
            return wake(*call)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        step = (Accepted("a", 3, 1), TextDelta("b", "x"), TextDelta("a", "y"), TextDelta("gone", "z"))
        hand_over(streams, *step)
        assert [await first.get(), await first.get(), await second.get()] == [step[0], step[2], step[1]]
        assert (first.empty(), second.empty(), wakes) == (True, True, 1)

    asyncio.run(body())


def test_a_closed_stream_and_a_closed_loop_have_nobody_left_to_tell() -> None:
    streams = Streams()

    async def body() -> None:
        events = streams.open("a")
        streams.close("a")
        hand_over(streams, TextDelta("a", "late"))
        streams.open("b")
        await asyncio.sleep(0)
        assert events.empty()

    asyncio.run(body())
    hand_over(streams, TextDelta("b", "later still"))


def test_all_open_streams_fail_together() -> None:
    async def body() -> None:
        streams = Streams()
        queues = {name: streams.open(name) for name in ("a", "b")}
        streams.fail_all("engine_stopped", "it ended")
        for name, events in queues.items():
            assert await events.get() == Failed(name, "engine_stopped", "it ended")

    asyncio.run(body())


def test_streams_of_several_loops_each_have_their_events() -> None:
    streams, opened, heard = Streams(), threading.Semaphore(0), dict[str, Event]()

    async def body(name: str) -> None:
        events = streams.open(name)
        opened.release()
        heard[name] = await asyncio.wait_for(events.get(), 20)

    threads = [threading.Thread(target=lambda name=name: asyncio.run(body(name))) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for _ in threads:
        opened.acquire()
    streams.hand_over([TextDelta("a", "x"), TextDelta("b", "y")])
    for thread in threads:
        thread.join()
    assert heard == {"a": TextDelta("a", "x"), "b": TextDelta("b", "y")}
