"""A process that is killed while it writes chains leaves a store that is sound, with all that had been written."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.messages import CacheOptions
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import Client, restarted, store_settings
from tests.engine.serving.spiller import conversation

pytestmark = pytest.mark.slow
TRUTH = CacheOptions(policy="full", chain="off")


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_in_the_middle_of_a_spill_leaves_a_sound_store(
    loaded: Runtime, tiny_path: Path, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    answered = killed_after(tiny_path, tmp_path, draw.randrange(2, 12), draw.random() * 0.02)
    runtime = restarted(loaded, replace(store_settings(tmp_path), memory_bytes=0))
    *_, verified = runtime.store.admin.verify()
    assert not verified.removed and not verified.failed
    worker = Worker(runtime, Limits(waiting=8, running=2))
    worker.start()
    client, found = Client(worker), 0
    for number in range(answered + 1):
        request = conversation(number)
        text, end = client.answer(replace(request, cache=replace(request.cache, mode="read")))
        found += end.report.chained_exact + end.report.chained_refreshed
        if request.cache.policy == "full":
            expected, _ = client.answer(replace(request, id="truth", cache=TRUTH))
            assert text == expected
    worker.stop(0)
    stats = runtime.chains.stats()
    assert stats.lost == {} and stats.loaded > 0 and stats.leases == runtime.pool.taken == 0
    # All but what the last of them had in the queue.
    assert found > 49 * answered
    runtime.store.entries.close()


def killed_after(model: Path, folder: Path, answers: int, seconds: float) -> int:
    """The number of the last conversation that was answered before the kill."""
    command = [sys.executable, "-m", "tests.engine.serving.spiller", str(model), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = next(int(line) for line in process.stdout if int(line) >= answers)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
    return last
