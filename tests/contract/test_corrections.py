"""Corrections in what the contract of all policies (`tests/contract`) does not ask: dtypes, codecs, sums."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.families.base import Rope
from engine.families.span import line_span
from engine.passes.correction import Corrected
from engine.passes.kv import RequestKV
from engine.passes.probe import Candidates
from engine.policies.corrections import CORRECTIONS, Correction, ridge, shift
from engine.policies.known import make_policy
from engine.prompt.layout import ImageSpan
from store.codecs.protocol import codec_named
from store.records.entry import ImageKV
from tests.contract.arms import Asked, ask
from tests.contract.test_policies import computed_rows
from tests.engine.conftest import SHIFTED, Bench, load_bench
from tests.engine.plain import run_plainly

pytestmark = pytest.mark.usefixtures("no_grad")

REUSE = make_policy("reuse", {})
EVERY = [name for name in CORRECTIONS if name != "none"]


@pytest.fixture(scope="module")
def half(tiny_path: Path) -> Bench:
    """The tiny model in bfloat16."""
    return load_bench(tiny_path, torch.bfloat16)


def largest_distance(asked: Asked, correction: str, ratio: float) -> float:
    """Between a request's KV and that of the plain reference."""
    policy = make_policy("impact", {"correction": correction})
    prefill, _ = asked.run(policy, ratio)
    plain, candidates = asked.restored(policy, ratio)
    images = tuple(zip(candidates.spans, candidates.entries, strict=True))
    run_plainly(plain, computed_rows(asked, policy, ratio), images, correction)
    length = asked.layout.length
    pairs = ((prefill.kv.keys, plain.kv.keys), (prefill.kv.values, plain.kv.values))
    return max(float((a - b)[:, :, :length].float().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("correction", EVERY)
@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
def test_entries_of_every_codec_are_corrected_from_what_they_hold(
    bench: Bench, codec: str, correction: str
) -> None:
    asked = ask(bench, SHIFTED, REUSE)
    asked = dataclasses.replace(asked, entries=[codec_named(codec).roundtrip(e) for e in asked.entries])
    assert largest_distance(asked, correction, 0.3) < 1e-4


@pytest.mark.parametrize("correction", EVERY)
def test_bfloat16_equals_the_plain_reference_to_its_rounding(half: Bench, correction: str) -> None:
    asked = ask(half, SHIFTED, REUSE)
    reach = max(float(entry.keys.float().abs().max()) for entry in asked.entries)
    assert largest_distance(asked, correction, 0.3) < reach * 2**-5


@pytest.mark.parametrize("name", EVERY)
def test_later_rows_of_the_same_image_have_a_say_and_those_of_others_none(bench: Bench, name: str) -> None:
    """The chosen ones are the last two of the first image and one of the second."""
    asked = ask(bench, SHIFTED, REUSE)
    first, second, third = asked.layout.spans
    chosen = np.asarray([first.stop - 2, first.stop - 1, second.start])
    moved = []
    for correction in (None, CORRECTIONS[name]):
        prefill, candidates = asked.restored(REUSE, 0.3)
        prefill.refresh(candidates, chosen, True, correction)
        moved.append(prefill.kv.keys[1])
    change = (moved[1] - moved[0]).abs().amax((0, 2))
    assert bool((change[first.start : first.stop - 2] > 1e-6).all())
    assert bool((change[second.start + 1 : second.stop] > 1e-6).all())
    assert float(change[third.start : third.stop].max()) == 0
    assert float(change[: first.start].max()) == 0


def test_few_rows_move_others_by_less() -> None:
    keys = torch.zeros(1, 5, 2)
    for count in (1, 3):
        assert shift(keys, torch.arange(count)).tolist() == [pytest.approx([1 / (count + 2)] * count)]


def test_rows_like_a_refreshed_one_move_with_it_and_the_opposite_ones_stay() -> None:
    """Two rows point up, two down, and one of those that point up is refreshed: (1 + cosine) / (2 + 1) of its move."""
    keys = torch.tensor([[[3.0, 0.0], [1.0, 0.0], [-2.0, 0.0], [-2.0, 0.0]]])
    assert ridge(keys, torch.tensor([0])).flatten().tolist() == pytest.approx([2 / 3, 2 / 3, 0, 0])
    both = ridge(keys, torch.tensor([0, 1]))
    assert both.sum(1).tolist() == pytest.approx([4 / 5, 4 / 5, 0, 0])


def test_where_all_keys_are_alike_the_ridge_is_a_shrunk_mean() -> None:
    keys = torch.ones(2, 6, 4)
    shares = ridge(keys, torch.tensor([1, 4, 5]))
    assert torch.allclose(shares, torch.full((6, 3), 1 / (3 + 1)))


def test_the_ridge_stands_two_equal_rows_and_huge_channels() -> None:
    keys = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0))
    keys[:, :, 3] += 1e4
    keys[:, 7] = keys[:, 8]
    shares = ridge(keys.bfloat16(), torch.tensor([7, 8, 20]))
    assert shares.dtype == torch.float32 and bool(shares.isfinite().all())
    assert torch.allclose(shares[:, 0], shares[:, 1], atol=1e-4)


def test_a_stored_key_that_is_no_number_stays_none_and_raises_nothing() -> None:
    """The request then ends where its logits are checked, like any other with such numbers."""
    keys = torch.randn(2, 10, 4, generator=torch.Generator().manual_seed(0))
    keys[0, 3, 1] = torch.nan
    assert bool(ridge(keys, torch.tensor([1, 5])).isnan().any())


def test_the_ridge_ends_at_two_thirds_of_the_depth() -> None:
    by_name = {name: found for name, found in CORRECTIONS.items() if found is not None}
    assert [layer for layer in range(6) if by_name["ridge"].corrects(layer, 6)] == [1, 2, 3, 4]
    assert [layer for layer in range(28) if by_name["ridge"].corrects(layer, 28)] == list(range(1, 19))
    assert [layer for layer in range(6) if by_name["shift"].corrects(layer, 6)] == [1, 2, 3, 4, 5]


def test_sums_of_bfloat16_are_float32() -> None:
    """A thousand rows move by 64 and back by 63.75 in turn: in bfloat16 the sum would lose the difference."""
    tokens, chosen = 1001, np.arange(1000)
    turn = torch.tensor([64.0, -63.75]).repeat(500)[None, :, None].expand(1, 1000, 4).bfloat16()
    zeros = torch.zeros(2, 1, tokens, 4, dtype=torch.bfloat16)
    entry = ImageKV(zeros, zeros, zeros[0], torch.zeros(2, tokens))
    kv = RequestKV(zeros.clone(), zeros.clone())
    rope = Rope(torch.ones(tokens, 4).bfloat16(), torch.zeros(tokens, 4).bfloat16())
    span = ImageSpan(0, 0, line_span(0, [0] * tokens))
    candidates = Candidates((span,), (entry,), np.arange(tokens), torch.zeros(tokens, dtype=torch.long))
    Corrected(Correction(shift), kv, rope, candidates, chosen, chosen)(1, turn, turn)
    wanted = torch.tensor(0.125 * 1000 / 1002).bfloat16()
    assert kv.keys.dtype == torch.bfloat16 and torch.equal(kv.values[1, 0, -1], wanted.expand(4))
    assert torch.equal(kv.keys[1, 0, -1], wanted.expand(4)) and not kv.keys[0].any()
