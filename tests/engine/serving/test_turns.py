"""Requests whose history was edited: what text they reuse, who may, and what the report says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.messages import CacheOptions, GenerateRequest, Message, Sampling
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import Client, image, open_runtime
from tests.engine.conftest import picture, said, user

SCREENS = tuple(image(picture(40 + seed, 84, 84)) for seed in range(5))
SYSTEM = said("system", "Read them all, slowly.")
WHOLE, DROPPED = (0, 1, 2, 3), (1, 2, 3)
REUSE = CacheOptions(turns="reuse")
FULL, OFF = CacheOptions(policy="full"), CacheOptions(chain="off")


@pytest.fixture
def runtime(tiny_path: Path, tmp_path: Path) -> Iterator[Runtime]:
    runtime = open_runtime(tiny_path, tmp_path / "store", 1 << 26)
    yield runtime
    runtime.store.entries.close()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    worker = Worker(runtime, Limits(waiting=8, running=3))
    worker.start()
    yield Client(worker)
    worker.stop(0)
    assert runtime.pool.taken == 0
    assert runtime.store.admin.stats().leases == 0
    assert runtime.chains.stats().leases == 0


def steps(
    name: str, screens: tuple[int, ...], cache: CacheOptions, question: str = "K?", tenant: str = "tenant"
) -> GenerateRequest:
    """A screenshot and an answer a turn, and a question about all of it."""
    messages: list[Message] = [SYSTEM]
    for place, number in enumerate(screens):
        messages += [user(place, f"This is screen {number}."), said("assistant", f"I press button {number}.")]
    images = tuple(SCREENS[number] for number in screens)
    asked = (*messages, user(question))
    return GenerateRequest(name, tenant, asked, images, Sampling(max_tokens=6), cache)


def test_an_edited_history_reuses_its_text_where_that_is_asked_for(client: Client) -> None:
    client.answer(steps("first", WHOLE, FULL))
    _, end = client.answer(steps("dropped", DROPPED, REUSE))
    report, visual = end.report, end.report.visual_tokens
    assert report.turns_reused > 20
    assert end.usage.cached_tokens == report.reused + report.turns_reused + report.chained_exact
    assert report.reused + report.compiled + report.refreshed + report.chained == visual


def test_promise_2_text_behind_an_edit_is_computed_unless_its_reuse_is_asked_for(client: Client) -> None:
    """With the default the answer is that of a service that holds no chain."""
    cold, cold_end = client.answer(steps("cold", DROPPED, OFF))
    client.answer(steps("first", WHOLE, FULL))
    warm, warm_end = client.answer(steps("warm", DROPPED, CacheOptions(mode="read")))
    assert warm == cold
    assert warm_end.report.turns_reused == 0
    assert warm_end.report.refreshed == cold_end.report.refreshed


@pytest.mark.parametrize(
    "cache",
    [
        replace(REUSE, chain="exact"),
        replace(REUSE, chain="off"),
        replace(REUSE, mode="bypass"),
        replace(REUSE, mode="rewrite"),
        replace(REUSE, policy="full"),
        replace(REUSE, refresh_ratio=1.0),
    ],
    ids=["exact", "off", "bypass", "rewrite", "full", "r=1"],
)
def test_what_answers_exactly_or_reads_no_chain_takes_none(client: Client, cache: CacheOptions) -> None:
    client.answer(steps("first", WHOLE, FULL))
    _, end = client.answer(steps("dropped", DROPPED, cache))
    assert end.report.turns_reused == 0


def test_no_text_crosses_tenants_or_salts(client: Client) -> None:
    client.answer(steps("first", WHOLE, FULL))
    for tenant in ("other", "tenant+salt"):
        _, end = client.answer(steps(tenant, DROPPED, REUSE, tenant=tenant))
        assert end.report.turns_reused == 0


def test_what_reused_text_serves_nobody_who_computes_his(client: Client) -> None:
    client.answer(steps("first", WHOLE, FULL))
    _, first = client.answer(steps("dropped", DROPPED, REUSE))
    expected, _ = client.answer(steps("cold", DROPPED, OFF, "And L?"))
    text, end = client.answer(steps("computing", DROPPED, CacheOptions(mode="read"), "And L?"))
    assert text == expected and end.report.chained_refreshed == 0
    _, end = client.answer(steps("reusing", DROPPED, REUSE, "And L?"))
    assert end.report.chained_refreshed > 0
    # The rows that the first question left stale are stale still, but those that the second one takes.
    assert 0 < end.report.turns_reused <= first.report.turns_reused


def test_a_window_that_slides_finds_its_text_again_and_again(client: Client) -> None:
    client.answer(steps("0", (0, 1, 2), FULL))
    for number, window in enumerate([(1, 2, 3), (2, 3, 4), (3, 4, 0)]):
        _, end = client.answer(steps(f"{number + 1}", window, REUSE))
        # Of three runs the first follows the edit, and the last is new.
        assert end.report.turns_reused > 0, number


def test_refining_makes_it_exact(client: Client) -> None:
    client.answer(steps("first", WHOLE, FULL))
    expected, _ = client.answer(steps("truth", DROPPED, CacheOptions(policy="full", chain="off"), "And L?"))
    _, end = client.answer(steps("dropped", DROPPED, replace(REUSE, refine=4096)))
    assert end.report.turns_reused > 0 and end.report.refined > 0
    text, end = client.answer(steps("second", DROPPED, CacheOptions(chain="exact"), "And L?"))
    assert text == expected
    assert [i.tier for i in end.report.images] == ["chain"] * 3 and end.report.refreshed == 0


def test_cleared_chains_give_no_text(client: Client) -> None:
    client.answer(steps("first", WHOLE, FULL))
    chains = client.worker.runtime.chains
    for held in chains.every():
        chains.evict(held.digest, "admin")
    _, end = client.answer(steps("dropped", DROPPED, REUSE))
    assert end.report.turns_reused == 0
