"""The tiny model of the engine tests, and a prompt for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from eval.trial import Prompt
from tests.engine.conftest import PICTURES, SHIFTED, Bench, bench, tiny_path

__all__ = ["bench", "prompt", "tiny_path"]


@pytest.fixture
def prompt(bench: Bench) -> Iterator[Prompt]:
    with torch.no_grad():
        shapes = [bench.family.span(p.shape[1], p.shape[0]) for p in PICTURES]
        layout = bench.prompt.layout(SHIFTED, shapes)
        foreign = bench.prompt.layout(SHIFTED, shapes, "Is it raining there?").query
        entries = tuple(bench.entry(PICTURES[span.image]) for span in layout.spans)
        yield Prompt(layout, tuple(entry.features for entry in entries), entries, foreign)
