from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.passes.kv import KVPool
from engine.serving.load import load_runtime
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits, ModelSettings
from store.open import open_store
from store.settings import StoreSettings
from tests.engine.asking import Client, store_settings


@pytest.fixture(scope="session")
def loaded(tiny_path: Path) -> Runtime:
    """A model that has been loaded and checked once for all tests."""
    return load_runtime(ModelSettings(str(tiny_path), device="cpu"), open_store(StoreSettings()), "raw")


@pytest.fixture
def runtime(loaded: Runtime, tmp_path: Path) -> Iterator[Runtime]:
    """The model with buffers and a store of its own."""
    family = loaded.family
    store = open_store(store_settings(tmp_path / "store"))
    yield replace(loaded, store=store, pool=KVPool(family.shape, family.dtype, family.device))
    store.entries.close()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    worker = Worker(runtime, Limits(waiting=8, running=2))
    worker.start()
    yield Client(worker)
    worker.stop(0)
    assert runtime.pool.taken == 0
    assert runtime.store.admin.stats().leases == 0
