"""The fast forms of attention against the plain mask, and the order they must keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.passes.attention import Causal, LastRow, Masked, Staircase
from engine.passes.score import attention_weights

HEADS, KV_HEADS, DIM, SLOTS = 4, 2, 8, 300
GROUP = HEADS // KV_HEADS

ROWS = {
    "scattered": np.sort(np.random.default_rng(0).choice(SLOTS, 75, replace=False)),
    "every slot": np.arange(SLOTS),
    "one row at the start": np.array([0]),
    "one row at the end": np.array([SLOTS - 1]),
    "text around a gap": np.concatenate([np.arange(10), np.arange(250, SLOTS)]),
}


def tensors(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(HEADS, rows, DIM, generator=generator),
        torch.randn(KV_HEADS, SLOTS, DIM, generator=generator),
        torch.randn(KV_HEADS, SLOTS, DIM, generator=generator),
    )


def plain(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """Softmax over each row's visible slots, one head and row at a time."""
    out = torch.empty_like(queries)
    for head in range(HEADS):
        for row, slot in enumerate(slots.tolist()):
            seen_keys, seen_values = keys[head // GROUP, : slot + 1], values[head // GROUP, : slot + 1]
            out[head, row] = torch.softmax(seen_keys @ queries[head, row] * DIM**-0.5, 0) @ seen_values
    return out


@pytest.mark.parametrize("rows", ROWS)
def test_forms_equal_the_plain_formula(rows: str) -> None:
    slots = torch.as_tensor(ROWS[rows])
    queries, keys, values = tensors(len(slots))
    expected = plain(queries, keys, values, slots)
    for form in (Masked(slots, GROUP), Staircase(slots, GROUP)):
        assert torch.allclose(form(queries, keys, values), expected, atol=1e-5)
        assert form.pairs == int(slots.sum()) + len(slots)
    if rows == "every slot":
        assert torch.allclose(Causal(SLOTS)(queries, keys, values), expected, atol=1e-5)
        assert Causal(SLOTS).pairs == Masked(slots, GROUP).pairs
    if len(slots) == 1:
        last = LastRow(int(slots[0]))
        assert torch.allclose(last(queries, keys, values), expected, atol=1e-5)
        assert last.pairs == Masked(slots, GROUP).pairs


def test_staircase_works_in_bfloat16() -> None:
    slots = torch.as_tensor(ROWS["scattered"])
    queries, keys, values = (t.bfloat16() for t in tensors(len(slots)))
    got = Staircase(slots, GROUP)(queries, keys, values)
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), Masked(slots, GROUP)(queries, keys, values).float(), atol=3e-2)


def test_a_later_slot_never_changes_an_earlier_row() -> None:
    """T6 on the kernel: perturbing one slot changes the rows at and behind it, and no other."""
    slots = torch.as_tensor(ROWS["scattered"])
    queries, keys, values = tensors(len(slots))
    form = Staircase(slots, GROUP)
    before = form(queries, keys, values)
    for changed in (0, 40, 123, int(slots[50]), SLOTS - 1):
        other_keys, other_values = keys.clone(), values.clone()
        other_keys[:, changed] += 3
        other_values[:, changed] += 3
        change = (form(queries, other_keys, other_values) - before).abs().amax(dim=(0, 2))
        assert torch.equal(change > 1e-6, slots >= changed)


def test_scores_of_bfloat16_queries_are_those_of_their_float32_values() -> None:
    """The scale is no power of two, so that a product in bfloat16 would round once more."""
    draw = torch.Generator().manual_seed(5)
    queries = (3 * torch.randn(4, 9, 48, generator=draw)).bfloat16()
    keys = (3 * torch.randn(2, 30, 48, generator=draw)).bfloat16()
    mask = torch.zeros(2 * 9, 30)
    found = attention_weights(queries, keys, mask)
    assert torch.equal(found, attention_weights(queries.float(), keys.float(), mask))
