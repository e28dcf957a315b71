"""CONDUIT's arithmetic against plain references: T3 to T5 and T10 of the validation plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UnknownPolicy
from engine.families.base import ModelShape
from engine.policies.base import Probe, ScorePlan
from engine.policies.conduit import Conduit, favour_each_image, image_coefficients
from engine.score import attention_weights, behind_output, joined_by_head
from tests.engine.conftest import PICTURES, SHIFTED, Bench

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


def test_T5_scaled_values_change_nothing() -> None:
    found = probe(3, [12, 8])
    scaled = Probe(found.mass, found.norms * 37.0, found.image)
    assert Conduit().select(found, 5).tolist() == Conduit().select(scaled, 5).tolist()


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
    prefill, _ = bench.reuse(layout, PICTURES, 0.0)
    entries = [bench.entry(PICTURES[span.image]) for span in layout.spans]
    candidates = prefill.restore(entries, Conduit(), 0.1)
    found = prefill.prober.probe(candidates, ScorePlan((0,)), 1)
    family, rows = bench.family, layout.query
    rope = family.rope(torch.as_tensor(layout.positions))
    hidden = family.embed(torch.as_tensor(layout.ids))
    projected = family.project(0, hidden)

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * rope.cos + torch.cat((-x[..., half:], x[..., :half]), -1) * rope.sin

    keys, queries = turned(projected.keys), turned(projected.queries)
    visual, asking = torch.as_tensor(layout.visual_slots()), torch.as_tensor(rows.slots)
    keys[:, visual] = prefill.kv.keys[0][:, visual]
    logits = queries[:, asking] @ keys.repeat_interleave(2, 0).transpose(1, 2) / family.shape.head_dim**0.5
    seen = torch.zeros(layout.length, dtype=torch.bool)
    seen[visual] = seen[asking] = True
    unseen = ~seen[None] | (torch.arange(layout.length)[None] > asking[:, None])
    weights = logits.masked_fill(unseen, float("-inf")).softmax(-1)
    assert torch.allclose(found.mass[0], weights.mean((0, 1))[visual], atol=1e-6)
    norms = torch.cat([entry.values[0] for entry in entries], 1).pow(2).sum((0, 2)).sqrt()
    assert torch.allclose(found.norms[0], norms, atol=1e-5)


def test_head_by_head_scores_equal_their_formulas() -> None:
    draw = torch.Generator().manual_seed(6)
    mass, values = torch.rand(4, 5, generator=draw), torch.randn(2, 5, 8, generator=draw)
    projection = torch.randn(12, 32, generator=draw)
    for t in range(5):
        by_head = [float(mass[h, t]) * float(values[h // 2, t].norm()) for h in range(4)]
        assert float(joined_by_head(mass, values)[t]) == pytest.approx(sum(by_head) / 4, rel=1e-5)
        added = sum(projection[:, 8 * h : 8 * h + 8] @ values[h // 2, t] * mass[h, t] for h in range(4))
        assert float(behind_output(mass, values, projection)[t]) == pytest.approx(
            float(added.norm()), rel=1e-4
        )
