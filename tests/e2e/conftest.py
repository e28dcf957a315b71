from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.random_model import SHIPPED, TINY, write_random_model
from tests.e2e.live import Live

Start = Callable[..., Live]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that ships; a random one of its kind in a checkout without its weights."""
    if list(SHIPPED.glob("*.safetensors")):
        return SHIPPED
    return write_random_model(tmp_path_factory.mktemp("tiny-e2e"), TINY)


@pytest.fixture
def start(model_path: Path, tmp_path: Path) -> Iterator[Start]:
    """Start services, each over a store of its own (or over `folder`); they end with the test."""
    with ExitStack() as stack:

        def begin(folder: Path | None = None, model: Path = model_path, **settings: Any) -> Live:
            place = folder or tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
            place.mkdir(exist_ok=True)
            return stack.enter_context(Live(place, model, **settings))

        yield begin


@pytest.fixture(scope="module")
def live(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One service for the tests of a module that leave nothing behind which another would mind."""
    with Live(tmp_path_factory.mktemp("store"), model_path) as service:
        yield service
