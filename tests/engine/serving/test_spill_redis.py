"""Chains in a tier that machines share: what one computed another goes on from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.messages import CacheOptions
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from store.settings import StoreSettings
from tests.engine.asking import Client, ask, clear, restarted
from tests.engine.conftest import said, user
from tests.store.redis_server import shared_server

FIRST = (said("system", "Read them all, slowly."), user(0, 1, "What is K on the red page?"))
SECOND = (FIRST[0], user(0, 1, "And L?"))
FULL, TRUTH = CacheOptions(policy="full"), CacheOptions(policy="full", chain="off")


@pytest.fixture
def settings() -> StoreSettings:
    server = shared_server()
    server.flush()
    return StoreSettings(path=None, decoded_bytes=1 << 24, redis_url=server.url, redis_timeout=5.0)


def machine(loaded: Runtime, settings: StoreSettings) -> Client:
    worker = Worker(restarted(loaded, settings), Limits(waiting=8, running=2))
    worker.start()
    return Client(worker)


def stop(client: Client) -> None:
    client.worker.stop(0)
    client.worker.runtime.store.entries.close()


def test_another_machine_goes_on_from_what_one_has_written(loaded: Runtime, settings: StoreSettings) -> None:
    one, another = machine(loaded, settings), machine(loaded, settings)
    one.answer(ask("first", FIRST, cache=FULL))
    assert one.worker.runtime.store.entries.flush(60)
    expected, _ = one.answer(ask("truth", SECOND, cache=TRUTH))
    text, end = another.answer(ask("second", SECOND))
    assert text == expected
    assert [i.tier for i in end.report.images] == ["chain", "chain"]
    assert end.report.chained_exact > 49
    clear(one.worker.runtime, "tenant")
    stop(another)
    third = machine(loaded, settings)
    _, end = third.answer(ask("third", FIRST, cache=replace(FULL, mode="read")))
    assert end.report.chained_exact == 0
    stop(one)
    stop(third)


def test_promise_5_a_server_that_is_away_costs_no_answer(loaded: Runtime) -> None:
    away = StoreSettings(path=None, decoded_bytes=1 << 24, redis_url="redis://127.0.0.1:9", redis_timeout=0.1)
    client = machine(loaded, away)
    expected, _ = client.answer(ask("truth", FIRST, cache=TRUTH))
    text, _ = client.answer(ask("first", FIRST, cache=FULL))
    again, end = client.answer(ask("again", FIRST, cache=FULL))
    assert text == again == expected
    assert end.report.chained_exact == end.usage.prompt_tokens - 1, "memory serves all the same"
    stop(client)
