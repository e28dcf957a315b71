"""The events of a request as the HTTP side takes them: in order, in time, and each failure at its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest

from engine.messages import Accepted, Event, Failed, Finished, GenerateRequest, TextDelta
from service.chat.generation import Generation
from service.errors import ImageError, ServiceError

REQUEST = GenerateRequest("r", "tenant", (), ())
ACCEPTED = Accepted("r", 1, 0)
FINISHED = Finished("r", "stop", *[cast(Any, None)] * 3)
Source = Callable[[], AsyncGenerator[Event, None]]


class Client:
    """An engine whose events are those of `source`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.closed = False

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        try:
            async for event in self._source():
                yield event
        finally:
            self.closed = True


def of(*events: Event) -> Source:
    async def source() -> AsyncGenerator[Event, None]:
        for event in events:
            yield event

    return source


def taken(source: Source, seconds: float = 10.0) -> list[Event]:
    """What a request takes of its events, which are closed behind it whatever happens."""

    async def body() -> list[Event]:
        client = Client(source)
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with Generation(
                cast(Any, client), REQUEST, deadline, ["images[0]", "images[1]"]
            ) as generation:
                await generation.accepted()
                return [event async for event in generation.output()]
        finally:
            assert client.closed

    return asyncio.run(body())


def test_nothing_is_taken_behind_the_end() -> None:
    text = TextDelta("r", "x")
    assert taken(of(ACCEPTED, text, FINISHED, TextDelta("r", "late"))) == [text, FINISHED]


@pytest.mark.parametrize(
    "events",
    [(TextDelta("r", "x"), FINISHED), (ACCEPTED, ACCEPTED, FINISHED), (ACCEPTED, TextDelta("r", "x")), ()],
    ids=["not accepted", "accepted twice", "no end", "nothing"],
)
def test_a_stream_that_is_none_is_an_error_of_the_engine(events: tuple[Event, ...]) -> None:
    with pytest.raises(ServiceError) as caught:
        taken(of(*events))
    assert caught.value.code == "internal_error"


def test_the_deadline_ends_a_stream_that_always_has_something_to_say() -> None:
    """Events that are there already are taken without a wait: no timer comes in between."""

    async def endless() -> AsyncGenerator[Event, None]:
        yield ACCEPTED
        end = time.monotonic() + 5
        while time.monotonic() < end:
            yield TextDelta("r", "x")
        yield FINISHED

    with pytest.raises(ServiceError) as caught:
        taken(endless, seconds=0.05)
    assert caught.value.code == "request_timeout"


def test_the_deadline_ends_a_stream_that_says_nothing() -> None:
    async def silent() -> AsyncGenerator[Event, None]:
        yield ACCEPTED
        await asyncio.Event().wait()

    with pytest.raises(ServiceError) as caught:
        taken(silent, seconds=0.05)
    assert caught.value.code == "request_timeout"


@pytest.mark.parametrize("image", [0, 1])
def test_a_picture_that_fails_is_named_by_its_number_and_its_field(image: int) -> None:
    with pytest.raises(ImageError) as caught:
        taken(of(Failed("r", "invalid_image", "It is too small.", image)))
    assert caught.value.param == f"images[{image}]"
    assert caught.value.message.startswith(f"Image {image + 1}: ")


@pytest.mark.parametrize(
    ("code", "again"), [("queue_full", True), ("engine_stopped", True), ("invalid_prompt", False)]
)
def test_only_who_may_have_more_luck_later_is_told_to_come_back(code: str, again: bool) -> None:
    with pytest.raises(ServiceError) as caught:
        taken(of(Failed("r", code, "No.")))
    assert (caught.value.code, caught.value.retry_after is not None) == (code, again)
