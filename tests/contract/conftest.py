"""The tiny model of the engine tests, for contracts that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.conftest import bench, tiny_path

__all__ = ["bench", "no_grad", "tiny_path"]


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
