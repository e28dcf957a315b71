"""The start-up gate: a model that reuse would lead astray may not reuse, one without numbers is not served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.families.base import Rope
from engine.passes.forward import Rows
from engine.passes.kv import RequestKV
from engine.passes.restore import restore
from engine.serving.gate import reuse_is_unsound
from tests.engine.conftest import Bench

NAN = float("nan")


@torch.no_grad()
def test_a_sound_model_passes(bench: Bench) -> None:
    assert reuse_is_unsound(bench.family, bench.prompt, bench.pool) is None


def positions(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    rope = bench.family.rope
    patch.setattr(bench.family, "rope", lambda positions: rope(positions * 2))


def numerics(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """One percent off is more than float32 rounds."""
    logits = bench.family.logits
    patch.setattr(bench.family, "logits", lambda hidden: logits(hidden) * 1.01)


def restored(name: str) -> Callable[[Bench, pytest.MonkeyPatch], None]:
    def fault(bench: Bench, patch: pytest.MonkeyPatch) -> None:
        def wrongly(kv: RequestKV, *others: Any) -> None:
            restore(kv, *others)
            getattr(kv, name).zero_()

        patch.setattr("engine.passes.refresh.restore", wrongly)

    fault.__name__ = f"restored_{name}"
    return fault


def scattered_rows(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """Attention of scattered rows that looks at one slot too few."""
    from engine.passes.attention import by_order

    def short(slots: torch.Tensor, group: int) -> object:
        attention = by_order(slots, group)
        return lambda queries, keys, values: attention(queries, keys.roll(1, 1), values)

    patch.setattr("engine.serving.gate.by_order", pairs_of(short))


def pairs_of(make: Callable[..., object]) -> Callable[..., object]:
    class Counted:
        pairs = 0

        def __init__(self, *arguments: object) -> None:
            self._attend = make(*arguments)

        def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
            return self._attend(*tensors)  # type: ignore[operator, no-any-return]

    return Counted


def stored_numbers(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    from engine.passes.forward import run_rows

    def poisoned(family: object, kv: object, rows: Rows, *others: object) -> torch.Tensor:
        rope = Rope(rows.rope.cos, rows.rope.sin)
        return run_rows(family, kv, Rows(rows.hidden * NAN, rows.slots, rope, rows.added), *others)  # type: ignore

    patch.setattr("engine.passes.compile.run_rows", poisoned)


FAULTS = {
    positions: "library",
    numerics: "library",
    restored("keys"): "restored keys",
    restored("values"): "canonical",
    scattered_rows: "refreshing every row",
    stored_numbers: "not finite",
}


@torch.no_grad()
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_faulty_model_may_not_reuse(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Bench, pytest.MonkeyPatch], None]
) -> None:
    fault(bench, monkeypatch)
    taken = bench.pool.taken
    found = reuse_is_unsound(bench.family, bench.prompt, bench.pool)
    assert found is not None and FAULTS[fault] in found
    assert bench.pool.taken == taken


@torch.no_grad()
@pytest.mark.parametrize("number", [NAN, float("inf")])
def test_m5_a_model_without_numbers_is_not_served(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    stock = bench.family.stock_logits
    monkeypatch.setattr(bench.family, "stock_logits", lambda *asked: stock(*asked) * number)
    with pytest.raises(UnsupportedModel, match="CONDUIT_DTYPE"):
        reuse_is_unsound(bench.family, bench.prompt, bench.pool)


@torch.no_grad()
def test_m5_our_own_numbers_that_are_not_finite_refuse_reuse(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = bench.family.logits
    monkeypatch.setattr(bench.family, "logits", lambda hidden: logits(hidden) * NAN)
    assert "library" in (reuse_is_unsound(bench.family, bench.prompt, bench.pool) or "")
