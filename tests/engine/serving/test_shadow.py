"""The shadow check: what reuse cost, seen in idle time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from engine.figures import ShadowStats
from engine.messages import CacheOptions
from engine.serving.prepared import Prepared, prepare
from engine.serving.runtime import Runtime
from engine.serving.shadow import Shadow, add_check
from engine.serving.worker import Worker
from tests.engine.asking import IMAGES, WAIT, Client, ask
from tests.engine.conftest import said, user


def test_shadow_check_measures_reuse_in_idle_time(runtime: Runtime) -> None:
    worker = Worker(runtime, shadow_share=1.0)
    worker.start()
    client = Client(worker)
    shifted = (said("system", "Slowly."), user(0, 1, "What is K?"))
    client.answer(ask("exact", shifted, cache=CacheOptions(refresh_ratio=1.0)))
    client.answer(ask("full", shifted, cache=CacheOptions(policy="full")))  # nothing to compare
    wait_for(lambda: worker.status().shadow.checked == 1)
    assert worker.status().shadow.agreed == 1 and worker.status().shadow.kl_sum < 1e-4
    client.answer(ask("reused", shifted, cache=CacheOptions(policy="reuse")))
    wait_for(lambda: worker.status().shadow.checked == 2)
    assert worker.status().shadow.kl_sum > 1e-4
    worker.stop(0)
    assert runtime.pool.taken == 0


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def prepared_of(runtime: Runtime, name: str, policy: str | None = None) -> Prepared:
    return prepare(runtime, ask(name, cache=CacheOptions(policy=policy)), 0.0)


def test_as_many_requests_are_checked_as_was_asked_for(runtime: Runtime) -> None:
    reusing = prepared_of(runtime, "reusing")
    wanted = {share: sum(Shadow(runtime, share).wants(reusing) for _ in range(200)) for share in (0.0, 1.0)}
    assert wanted == {0.0: 0, 1.0: 200}
    quarter = Shadow(runtime, 0.25)
    assert 30 < sum(quarter.wants(reusing) for _ in range(200)) < 70
    assert not Shadow(runtime, 1.0).wants(prepared_of(runtime, "full", "full"))


def test_what_waits_to_be_checked_is_bounded(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow, logits = Shadow(runtime, 1.0), torch.zeros(3)
    one = sum(len(image.pixels) for image in IMAGES[:2])
    monkeypatch.setattr("engine.serving.shadow.MOST_PIXEL_BYTES", 3 * one)
    for number in range(5):
        shadow.offer(prepared_of(runtime, f"r{number}"), logits)
    assert [prepared.request.id for prepared, _ in shadow._offered] == ["r2", "r3", "r4"]
    monkeypatch.setattr("engine.serving.shadow.MOST_PIXEL_BYTES", one - 1)
    shadow.offer(prepared_of(runtime, "large"), logits)
    assert shadow.idle


def test_the_divergence_is_from_full_prefill_to_reuse() -> None:
    full, reused = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([0.5, 0.7, 0.0])
    p, q = full.softmax(0), reused.softmax(0)
    expected = float((p * (p / q).log()).sum())
    assert abs(expected - float((q * (q / p).log()).sum())) > 0.01, "the other way it is another number"
    found = add_check(ShadowStats(3, 2, 1.0), full, reused)
    assert (found.checked, found.agreed) == (4, 2)
    assert found.kl_sum == pytest.approx(1.0 + expected, rel=1e-5)
    assert add_check(ShadowStats(), full, full) == ShadowStats(1, 1, 0.0)
