"""The rules that only the evaluation knows: each does what its name says, and a budget stays a budget."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.policies.base import Probe
from engine.policies.known import make_policy
from eval.ablations import ABLATIONS, Details, looked_into
from eval.ideas import Adaptive, Blocks, Concentrated, Dealt, Scored, Sinks, Stale, TailRefresh, TwoRounds
from eval.own_rule import ADAPTIVE, ANCHORS, IdeaTrial, Study
from eval.page_prompts import PREFIXES, PageReader, draw
from eval.trial import Idea, Prompt
from tests.engine.conftest import Bench


def probe(*images: list[float]) -> Probe:
    """Contributions of the tokens of each image, at one layer."""
    scores = torch.tensor([[x for image in images for x in image]])
    image = torch.tensor([i for i, tokens in enumerate(images) for _ in tokens])
    return Probe(scores, torch.ones_like(scores), image, scores, torch.arange(scores.shape[1]).float())


def chosen(rule: Scored, budget: int, *images: list[float]) -> list[int]:
    found: list[int] = rule.select(probe(*images), budget).tolist()
    return found


def test_sinks_come_first() -> None:
    assert chosen(Sinks(1), 3, [0.1, 9.0, 0.2], [0.1, 0.2, 0.3]) == [0, 1, 3]


def test_blocks_are_taken_whole() -> None:
    grid = [1.0, 1.0, 0.0, 5.0, 1.0, 1.0, 0.0, 0.0]  # two rows of four
    assert chosen(Blocks(2, 2, 4), 4, grid) == [2, 3, 6, 7]
    assert chosen(Blocks(1, 2, 4), 2, grid) == [2, 3]


def test_adaptive_takes_what_holds_the_share_and_never_more_than_the_budget() -> None:
    image = [6.0, 2.0, 1.0, 1.0]
    assert chosen(Adaptive(0.5), 4, image) == [0]
    assert chosen(Adaptive(0.7), 4, image) == [0, 1]
    assert chosen(Adaptive(0.95), 2, image) == [0, 1]


def test_dealt_out_evenly() -> None:
    assert chosen(Dealt(), 4, [9.0, 8.0, 7.0], [0.3, 0.2, 0.1]) == [0, 1, 3, 4]


def test_concentration_decides_whether_the_best_image_is_favoured() -> None:
    clear = chosen(Concentrated(), 3, [9.0, 3.0, 3.0], [0.6, 0.5, 0.4])
    assert clear == [0, 1, 2]
    # Equal images: the coefficient is 1 whatever the weight; nearly equal ones hold one another back.
    assert chosen(Concentrated(), 2, [2.0, 1.0], [2.1, 0.8]) == [0, 2]


def test_staleness_multiplies() -> None:
    assert chosen(Stale(), 1, [3.0, 1.0, 2.0]) == [2]  # 3 x 0, 1 x 1, 2 x 2


@torch.no_grad()
def test_two_rounds_keep_the_budget_and_its_ends(bench: Bench, prompt: Prompt) -> None:
    trial = IdeaTrial(bench.family, bench.pool, prompt)
    full = trial.full
    assert torch.allclose(trial.run(TwoRounds(), 1.0), full, atol=1e-4)
    reuse = trial.run(make_policy("reuse", {}), 0.0)
    assert torch.allclose(trial.run(TwoRounds(), 0.0), reuse, atol=1e-5)
    calls: list[int] = []
    refresh = trial.own.refresh

    def counted(candidates, slots, text):  # type: ignore[no-untyped-def]
        calls.append(len(slots))
        return refresh(candidates, slots, text)

    trial.own.refresh = counted  # type: ignore[method-assign]
    trial.run(TwoRounds(), 0.5)
    count = -(-len(prompt.layout.candidates()) // 2)
    assert calls == [-(-count // 2), count]
    trial.close()


@torch.no_grad()
def test_a_study_says_what_an_adaptive_budget_spent(
    bench: Bench, prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.own_rule.WORK", tmp_path)
    arms = (*ANCHORS, Idea("two_rounds", "", rule=TwoRounds()), *ADAPTIVE)
    study = Study("set", bench.family, bench.pool, lambda number: (prompt, 5), arms, (0.5,))
    rows = study.measured(1, {})
    table, figures = study.figures(rows)
    assert table.kl("everything.r100")[0] < 1e-3
    spent = [figures[f"{arm.name}.r50"]["mean_share"] for arm in ADAPTIVE]
    assert spent == sorted(spent) and spent[0] > 0 and spent[-1] <= 0.55
    assert study.measured(1, {}) == rows


@torch.no_grad()
def test_tail_refresh_differs_from_conduit_by_text_only(bench: Bench, prompt: Prompt) -> None:
    rule = TailRefresh()
    assert rule.keeps_exact and not rule.refresh_text
    trial = IdeaTrial(bench.family, bench.pool, prompt)
    plan = rule.plan(bench.family.shape, 2)
    assert plan is not None and plan.all_text
    assert trial.run(rule, 0.5).isfinite().all()
    trial.close()


@torch.no_grad()
def test_ablations_look_into_what_changes(bench: Bench) -> None:
    reader = PageReader(bench.family, bench.prompt, bench.pool, "template")
    row = Details(reader, "system").row(0, [])
    assert list(row) == [arm.name for arm in ABLATIONS]
    found = looked_into({0: row})
    assert found["conduit"] == {"overlap": 1.0, "e2": 1.0, "flops": 1.0}
    assert 0 <= found["values_none"]["overlap"] <= 1 and found["values_none"]["e2"] > 0
    # The paper's scoring pass costs more than ours, and what refreshes other text has no E2.
    assert found["stage1_all_text"]["flops"] > 1 and found["stage1_all_text"]["e2"] > 0
    assert found["stage1_all_text_refresh_tail"]["e2"] is None


@torch.no_grad()
def test_pages_are_compiled_behind_what_is_named(bench: Bench) -> None:
    (example,) = draw("system", range(1), 3, pages=(2, 2))
    entries = {}
    for prefix in PREFIXES:
        prompt = PageReader(bench.family, bench.prompt, bench.pool, prefix).prompt(example, "K?")
        assert prompt.layout.exact == ()
        entries[prefix] = prompt.entries[0]
    own = entries["template"]
    for prefix in PREFIXES[1:]:
        other = entries[prefix]
        assert other.keys.shape == own.keys.shape and torch.equal(other.features, own.features)
        # Layer 0 sees no context, the layers behind it do.
        assert torch.allclose(other.values[0], own.values[0], atol=1e-5)
        assert not torch.allclose(other.values[1], own.values[1], atol=1e-5)
