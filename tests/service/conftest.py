from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import create_app
from service.settings import Settings
from tests.service.fake_engine import FakeEngine
from tests.service.serving import Host, image_host, serving

Start = Callable[..., httpx.Client]
DEFAULTS: dict[str, Any] = {"allowed_private_hosts": ("127.0.0.1",)}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeEngine, httpx.Client]]:
    """One service for all tests that do not mind: starting one takes longer than most tests."""
    engine = FakeEngine()
    app = create_app(Settings(**DEFAULTS, files_path=tmp_path_factory.mktemp("files")), engine)
    with serving(app) as served, httpx.Client(base_url=served.url, timeout=30, trust_env=False) as client:
        yield engine, client


@pytest.fixture
def engine(shared: tuple[FakeEngine, httpx.Client]) -> FakeEngine:
    shared[0].reset()
    return shared[0]


@pytest.fixture
def api(shared: tuple[FakeEngine, httpx.Client], engine: FakeEngine) -> httpx.Client:
    """A client of the service with default settings; 127.0.0.1 may be fetched from."""
    return shared[1]


@pytest.fixture
def host() -> Iterator[Host]:
    with image_host() as found:
        yield found


@pytest.fixture
def start(engine: FakeEngine, tmp_path: Path) -> Iterator[Start]:
    """Start the service on the fake engine with some settings; gives a client of it."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def begin(resolver: Any = None, **settings: Any) -> httpx.Client:
            given = {**DEFAULTS, "files_path": tmp_path / "files", **settings}
            app = create_app(Settings(**given), engine, resolver=resolver)
            url = stack.enter_context(serving(app)).url
            return stack.enter_context(httpx.Client(base_url=url, timeout=30, trust_env=False))

        yield begin
