"""What is shared between policies changes nothing: every arm gets the logits of a request of its own."""

from __future__ import annotations

import pytest
import torch

from engine.passes.forward import Work
from engine.passes.refresh import Prefill
from eval.arms import ARMS, RATIOS, cell
from eval.statistics import mean_interval
from eval.sweep import Table, cells, columns, measure
from eval.trial import Prompt, Trial, kl_to_full
from tests.engine.conftest import PICTURES, SHIFTED, Bench


def alone(bench: Bench, prompt: Prompt, arm: str, ratio: float) -> torch.Tensor:
    policy = next(a for a in ARMS if a.name == arm).make(7)
    layout = prompt.layout
    if policy.question is not None:
        shapes = [bench.family.span(p.shape[1], p.shape[0]) for p in PICTURES]
        layout = bench.prompt.layout(SHIFTED, shapes, "Is it raining there?")
    kv = bench.pool._allocate(layout.length + 100)
    return (
        Prefill(bench.family, kv, layout, prompt.features, Work()).reuse(prompt.entries, policy, ratio).logits
    )


@torch.no_grad()
def test_sharing_changes_nothing(bench: Bench, prompt: Prompt) -> None:
    trial = Trial(bench.family, bench.pool, prompt)
    wanted = [(arm, ratio) for arm in ARMS for ratio in (0.0, 0.1, 0.5, 1.0)]
    for _ in range(2):  # the second time with what was remembered
        shared = trial.run_all([(arm.make(7), ratio) for arm, ratio in wanted])
        for (arm, ratio), logits in zip(wanted, shared, strict=True):
            assert torch.allclose(logits, alone(bench, prompt, arm.name, ratio), atol=1e-5), (arm.name, ratio)
    trial.close()


@torch.no_grad()
def test_a_row_and_what_a_table_says_of_it(bench: Bench, prompt: Prompt) -> None:
    trial = Trial(bench.family, bench.pool, prompt)
    arms = [arm for arm in ARMS if arm.name in ("conduit", "random")]
    right = int(trial.full.argmax())
    row = measure(trial, right, cells(arms, RATIOS[:2]), columns(arms, RATIOS[:2]), 3)
    assert list(row) == columns(arms, RATIOS[:2])
    assert row["full"] == 1 and row["everything.r100"][:2] == [1, 1]
    table = Table.of({3: row, 4: row})
    table.check_ends()
    assert table.shares("set")["set.everything.r100"] == 1.0
    assert table.kl_ratios("set")["set.reuse.r0"] == 1.0
    figures = table.figures("conduit")
    assert figures["n"] == 2
    difference = table.right("random.r2") - table.right("conduit.r2")
    assert figures["random.r2"]["accuracy_minus_conduit"] == mean_interval(difference).as_list()
    assert measure(trial, right, cells(arms, RATIOS[:2]), ["random.r2"], 3).keys() == {"full", "random.r2"}
    trial.close()


def test_kl_is_zero_for_equal_and_positive_for_other_logits() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert kl_to_full(logits, logits + 3) == pytest.approx(0, abs=1e-6)
    assert kl_to_full(logits, -logits) > 0


def test_cell_names() -> None:
    assert [cell("conduit", r) for r in (0.0, 0.02, 0.025, 0.1, 1.0)] == [
        "conduit.r0",
        "conduit.r2",
        "conduit.r2.5",
        "conduit.r10",
        "conduit.r100",
    ]


def test_random_draws_anew_for_each_prompt() -> None:
    arm = next(a for a in ARMS if a.name == "random")
    assert arm.make(1) != arm.make(2)
