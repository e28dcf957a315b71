from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from demo.random_model import TINY, write_random_model
from tests.e2e.live import PATIENT
from tests.serving.crowd import CONTEXT, Service


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests here: starting it takes longer than most of them."""
    model = write_random_model(tmp_path_factory.mktemp("tiny-serving"), replace(TINY, context=CONTEXT))
    # The same question must have the same answer, whoever asked before: without chains.
    settings = {"model": str(model), "threads": "1", "drain_timeout": "1", "chain": "off"}
    started = Service(tmp_path_factory.mktemp("serving"), **settings)
    yield started
    started.stop()


@pytest.fixture
def service(shared_service: Service) -> Service:
    """Running, whatever the test before did to it."""
    if not shared_service.running:
        shared_service.start()
    return shared_service


@pytest.fixture
def api(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=PATIENT, trust_env=False) as client:
        yield client
