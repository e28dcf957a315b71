"""Admin calls on their way: each has the reply of its number, and none waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import EngineStopped, StoreFailed
from engine.transport.admin import AdminProxy
from engine.transport.calls import PendingCalls
from engine.transport.wire import Reply
from store.types import EntryFilter


def test_each_call_has_the_reply_of_its_number() -> None:
    calls = PendingCalls()
    (first, answer), (second, fault), (_, open_still) = calls.open(), calls.open(), calls.open()
    calls.replied(Reply(second, None, StoreFailed("full")))
    calls.replied(Reply(first, "there", None))
    assert answer.result(0) == "there"
    with pytest.raises(StoreFailed, match="full"):
        fault.result(0)
    assert not open_still.done()


def test_a_reply_that_nobody_waits_for_is_dropped() -> None:
    calls = PendingCalls()
    number, answer = calls.open()
    left, gone = calls.open()
    assert gone.cancel()
    for reply in (Reply(left, "late", None), Reply(number, "once", None), Reply(number, "twice", None)):
        calls.replied(reply)
    calls.replied(Reply(999, "nobody's", None))
    assert answer.result(0) == "once"


def test_without_a_worker_every_call_ends_once() -> None:
    calls = PendingCalls()
    (number, waiting), (_, left), (_, other) = calls.open(), calls.open(), calls.open()
    left.cancel()
    calls.fail_all("it ended")
    calls.replied(Reply(number, "late", None))
    calls.fail_all("once more")
    for future in (waiting, other):
        with pytest.raises(EngineStopped, match="it ended"):
            future.result(0)
    fresh, answer = calls.open()
    calls.replied(Reply(fresh, "there", None))
    assert answer.result(0) == "there"


SELECT = EntryFilter(tenant="alice")
ASKED: dict[str, tuple[Any, ...]] = {
    "stats": (),
    "entries": (SELECT, "cursor", 7),
    "entry": ("key",),
    "delete": ("key",),
    "evict": (SELECT, 5, True),
    "clear": ("alice", True),
    "lookup": ("alice", b"digest", 3, 2),
    "pin": ("key", 60.0),
    "unpin": ("key",),
    "quotas": (),
    "set_quota": ("alice", 7),
    "compact": (),
}


@pytest.mark.parametrize("name", ASKED)
def test_an_operator_s_call_is_handed_on_with_all_that_it_says(name: str) -> None:
    seen: list[tuple[str, tuple[object, ...]]] = []

    async def call(method: str, arguments: tuple[object, ...]) -> object:
        seen.append((method, arguments))
        return "answer"

    answer = asyncio.run(getattr(AdminProxy(call), name)(*ASKED[name]))
    assert seen == [(name, ASKED[name])]
    assert answer == (None if name == "set_quota" else "answer")
