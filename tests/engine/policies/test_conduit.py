"""CONDUIT's arithmetic against plain references: T3, T4 and T10 of the validation plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UnknownPolicy
from engine.families.base import ModelShape
from engine.passes.probe import Candidates
from engine.passes.refresh import Prefill
from engine.passes.score import attention_weights, behind_output, joined_by_head
from engine.policies.base import Probe, ScorePlan
from engine.policies.conduit import Conduit, favour_each_image, image_coefficients
from engine.prompt.layout import PromptLayout
from tests.engine.conftest import PICTURES, SHIFTED, Bench
from tests.engine.plain import first_layer_weights, up_to

SHAPE = ModelShape(28, 64, 96, 4, 2, 16, 100)


def probe(seed: int, sizes: list[int]) -> Probe:
    draw = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    image = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Probe(torch.rand(3, count, generator=draw), torch.rand(3, count, generator=draw), image)


def plain_choice(found: Probe, weight: float, count: int) -> list[int]:
    """refresh.md 2.1, spelled out token by token."""
    tokens = range(found.mass.shape[1])
    s = [
        sum(float(a[t]) * float(n[t]) for a, n in zip(found.mass, found.norms, strict=True)) / 3
        for t in tokens
    ]
    image = found.image.tolist()
    mu = [np.mean([s[t] for t in tokens if image[t] == j]) for j in range(max(image) + 1)]
    c = [(1 - weight) + weight * m / np.mean(mu) for m in mu]
    ranked = sorted(tokens, key=lambda t: (-c[image[t]] * s[t], t))
    return sorted(ranked[:count])


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.floats(0, 1),
)
def test_choice_equals_the_plain_formula(seed: int, sizes: list[int], weight: float, share: float) -> None:
    found = probe(seed, sizes)
    count = max(1, int(share * sum(sizes)))
    assert Conduit(image_weight=weight).select(found, count).tolist() == plain_choice(found, weight, count)


def test_T3_one_image_has_coefficient_one() -> None:
    found = probe(1, [30])
    chosen = {weight: Conduit(image_weight=weight).select(found, 7).tolist() for weight in (0.0, 0.3, 1.0)}
    assert chosen[0.0] == chosen[0.3] == chosen[1.0]
    assert float(image_coefficients(found.mass.mean(0), found.image, 1.0)) == pytest.approx(1)


def test_T4_readings_of_the_coefficient_agree_at_weight_one() -> None:
    """(mu / mean mu)^1 and 1 + (mu / max mu - 1) differ from it by a factor, which a global top-k does not see."""
    found = probe(2, [5, 20, 9])
    scores = (found.mass * found.norms).mean(0)
    mu = torch.stack([scores[found.image == j].mean() for j in range(3)])
    ours = Conduit(image_weight=1.0).select(found, 6).tolist()
    for reading in (mu / mu.mean(), mu / mu.max()):
        ranked = (scores * reading[found.image]).argsort(descending=True)[:6].sort().values
        assert ranked.tolist() == ours


def test_value_modes_read_their_own_probe() -> None:
    found = probe(4, [20])
    other = Probe(found.mass, found.norms, found.image, contribution=1 - found.mass * found.norms)
    assert Conduit(value_mode="none").select(other, 1).item() == int(found.mass.mean(0).argmax())
    worst = int((found.mass * found.norms).mean(0).argmin())
    assert Conduit(value_mode="wo").select(other, 1).item() == worst
    assert Conduit(value_mode="per_head").select(other, 1).item() == worst


def test_each_image_first_then_the_best() -> None:
    image = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    scores = torch.tensor([9.0, 8.0, 7.0, 6.0, 1.0, 3.0, 2.0])
    ranked = favour_each_image(scores, image, 2).argsort(descending=True).tolist()
    assert ranked == [0, 5, 1, 6, 2, 3, 4]
    found = Probe(scores[None], torch.ones(1, 7), image)
    assert Conduit(min_per_image=1).select(found, 3).tolist() == [0, 1, 5]


@pytest.mark.parametrize(
    ("options", "images", "expected"),
    [
        ({}, 4, ScorePlan((12, 14, 16, 18, 20))),
        ({"score_layers": "all", "query_span": "last_3"}, 4, ScorePlan(tuple(range(28)), last=3)),
        ({"score_layers": "1,27", "query_span": "tail"}, 4, ScorePlan((1, 27), span="tail")),
        ({"score_layers": "last_quarter"}, 4, ScorePlan(tuple(range(21, 28)))),
        ({"preset": "paper"}, 4, ScorePlan(tuple(range(28)), all_text=True, span="tail")),
        ({"preset": "paper"}, 1, ScorePlan((12, 14, 16, 18, 20), all_text=True, span="tail")),
    ],
)
def test_plans(options: dict[str, str], images: int, expected: ScorePlan) -> None:
    assert Conduit(**options).plan(SHAPE, images) == expected  # type: ignore[arg-type]


def test_a_layer_that_the_model_lacks_is_named() -> None:
    with pytest.raises(UnknownPolicy, match="layers 0 to 27"):
        Conduit(score_layers="3,28").plan(SHAPE, 2)


def test_T10_mass_equals_attention_with_repeated_keys() -> None:
    draw = torch.Generator().manual_seed(5)
    queries, keys = torch.randn(4, 3, 16, generator=draw), torch.randn(2, 9, 16, generator=draw)
    slots = torch.tensor([4, 6, 8])
    hidden = torch.arange(9)[None] > slots[:, None]
    mask = torch.zeros(3, 9).masked_fill(hidden, float("-inf"))
    weights = attention_weights(queries, keys, mask.repeat(2, 1)).view(4, 3, 9)
    logits = queries @ keys.repeat_interleave(2, 0).transpose(1, 2) / 4 + mask
    assert torch.allclose(weights, logits.softmax(-1), atol=1e-6)


@torch.no_grad()
def test_T10_probe_equals_the_weights_of_a_plain_pass(bench: Bench) -> None:
    """The scoring pass at its first layer, over the same visible columns, mean over rows and heads."""
    layout = bench.layout(SHIFTED, PICTURES)
    prefill, candidates = restored(bench, layout)
    found = prefill.prober.probe(candidates, ScorePlan((0,)), 1)
    visual, asking = torch.as_tensor(layout.visual_slots()), torch.as_tensor(layout.query.slots)
    present = torch.zeros(layout.length, dtype=torch.bool)
    present[visual] = present[asking] = True
    weights = first_layer_weights(prefill, asking, present & up_to(asking, layout.length))
    assert torch.allclose(found.mass[0], weights.mean((0, 1))[visual], atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("span", ["user", "tail"])
@pytest.mark.parametrize("last", [None, 2])
def test_T10_mass_of_the_paper_s_pass_equals_the_weights_of_a_plain_one(
    bench: Bench, span: str, last: int | None
) -> None:
    """Its first layer: the rows behind the last image ask, all text before them is there to attend to."""
    layout = bench.layout(SHIFTED, PICTURES)
    prefill, candidates = restored(bench, layout)
    found = prefill.prober.probe(candidates, ScorePlan((0,), all_text=True, span=span, last=last), 1)
    spans = {"user": layout.query.slots, "tail": layout.tail()}
    assert len(spans["user"]) < len(spans["tail"])
    asking = torch.as_tensor(spans[span] if last is None else spans[span][-last:])
    weights = first_layer_weights(prefill, asking, up_to(asking, layout.length))
    assert torch.allclose(found.mass[0], weights.mean((0, 1))[layout.visual_slots()], atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("all_text", [False, True])
def test_norms_are_those_of_the_score_layers(bench: Bench, all_text: bool) -> None:
    prefill, candidates = restored(bench, bench.layout(SHIFTED, PICTURES))
    found = prefill.prober.probe(candidates, ScorePlan((0, 2), all_text=all_text), 1)
    for row, layer in enumerate((0, 2)):
        norms = torch.cat([entry.values[layer] for entry in candidates.entries], 1).pow(2).sum((0, 2)).sqrt()
        assert torch.allclose(found.norms[row], norms, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["per_head", "wo"])
def test_contributions_are_those_of_the_score_layers(bench: Bench, mode: str) -> None:
    """Where a layer's values are zero its tokens bring nothing, and elsewhere they do."""
    prefill, candidates = restored(bench, bench.layout(SHIFTED, PICTURES))
    for entry in candidates.entries:
        entry.values[2] = 0
    found = prefill.prober.probe(candidates, ScorePlan((1, 2), value_mode=mode), 1)
    assert bool((found.contribution[0] > 0).all()) and bool((found.contribution[1] == 0).all())


def restored(bench: Bench, layout: PromptLayout) -> tuple[Prefill, Candidates]:
    entries = [bench.entry(PICTURES[span.image]) for span in layout.spans]
    prefill = bench.prefill(layout, PICTURES)
    return prefill, prefill.restore(entries, Conduit(), 0.1)


def test_head_by_head_scores_equal_their_formulas() -> None:
    draw = torch.Generator().manual_seed(6)
    mass, values = torch.rand(4, 5, generator=draw), torch.randn(2, 5, 8, generator=draw)
    projection = torch.randn(12, 32, generator=draw)
    for t in range(5):
        by_head = [float(mass[h, t]) * float(values[h // 2, t].norm()) for h in range(4)]
        assert float(joined_by_head(mass, values)[t]) == pytest.approx(sum(by_head) / 4, rel=1e-5)
        parts = [projection[:, 8 * h : 8 * h + 8] @ values[h // 2, t] * mass[h, t] for h in range(4)]
        added = float(torch.stack(parts).sum(0).norm())
        assert float(behind_output(mass, values, projection)[t]) == pytest.approx(added, rel=1e-4)
