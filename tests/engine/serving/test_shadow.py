"""The shadow check: what reuse cost, seen in idle time."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.messages import (
    CacheOptions,
)
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from tests.engine.asking import WAIT, Client, ask
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
