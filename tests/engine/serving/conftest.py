from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import Client, open_runtime


@pytest.fixture
def runtime(tiny_path: Path, tmp_path: Path) -> Iterator[Runtime]:
    runtime = open_runtime(tiny_path, tmp_path / "store")
    yield runtime
    runtime.store.entries.close()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    worker = Worker(runtime, Limits(waiting=8, running=2))
    worker.start()
    yield Client(worker)
    worker.stop(0)
    assert runtime.pool.taken == 0
    assert runtime.store.admin.stats().leases == 0
