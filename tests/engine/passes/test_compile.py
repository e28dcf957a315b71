"""What is kept of an image."""

from __future__ import annotations

import pytest
import torch

from engine.errors import NotFinite
from engine.passes.compile import compile_image, entry_layout
from engine.passes.forward import Work
from tests.engine.conftest import PICTURES, Bench


@torch.no_grad()
def test_value_norms_are_over_all_heads_of_a_token(bench: Bench) -> None:
    entry = bench.entry(PICTURES[0])
    layers, heads, tokens, width = entry.values.shape
    assert heads > 1
    by_token = entry.values.permute(0, 2, 1, 3).reshape(layers, tokens, heads * width)
    assert torch.allclose(entry.value_norms, torch.linalg.vector_norm(by_token, dim=-1), rtol=1e-5)


@torch.no_grad()
def test_an_entry_is_of_the_layout_that_is_said_of_it(bench: Bench) -> None:
    entry, picture = bench.entry(PICTURES[1]), PICTURES[1]
    layout = entry_layout(bench.family, bench.family.span(picture.shape[1], picture.shape[0]))
    assert entry.keys.shape == (layout.layers, layout.kv_heads, layout.tokens, layout.head_dim)
    assert entry.values.shape == entry.keys.shape
    assert entry.features.shape == (layout.levels, layout.tokens, layout.hidden)
    assert {str(t.dtype) for t in (entry.keys, entry.values, entry.features)} == {f"torch.{layout.dtype}"}


@torch.no_grad()
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("row", [0, -1])
def test_m5_an_entry_with_one_number_that_is_not_finite_is_not_made(
    bench: Bench, number: float, row: int
) -> None:
    picture = PICTURES[0]
    features = bench.family.encode(picture)
    features[0, row, 3] = number
    span, taken = bench.family.span(picture.shape[1], picture.shape[0]), bench.pool.taken
    with pytest.raises(NotFinite):
        compile_image(bench.family, bench.pool, bench.prompt.prefix_ids, features, span, Work())
    assert bench.pool.taken == taken
