"""Fault M5: a model that gives NaN or infinity ends its request with one error; nothing of it is kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from engine.figures import ShadowStats
from engine.messages import CacheOptions, Failed, Finished, Sampling, TextDelta
from engine.serving.runtime import Runtime
from engine.serving.shadow import add_check
from store.types import EntryFilter
from tests.engine.asking import Client, ask, drain

NAN, INF = float("nan"), float("inf")
SAMPLINGS = {
    "greedy": Sampling(max_tokens=9),
    "drawn": Sampling(max_tokens=9, temperature=1.0, top_p=0.9),
    "with logprobs": Sampling(max_tokens=9, logprobs=3),
    "with penalties": Sampling(max_tokens=9, repetition_penalty=1.2, logit_bias=((5, -3.0),)),
}


def spoilt_from(step: int, number: float, logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """From its `step`-th call on, the model says `number`."""
    calls = 0

    def spoilt(hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return logits(hidden) if calls < step else torch.full_like(logits(hidden), number)

    return spoilt


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_m5_a_request_without_numbers_ends_with_one_error(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, sampling: str
) -> None:
    for number, step in itertools.product((NAN, INF, -INF), (1, 3)):
        with monkeypatch.context() as patch:
            patch.setattr(runtime.family, "logits", spoilt_from(step, number, runtime.family.logits))
            *events, last = client.run(ask("r", sampling=SAMPLINGS[sampling]))
        assert isinstance(last, Failed) and last.code == "not_finite"
        shown = [event for event in events if isinstance(event, TextDelta)]
        assert len(shown) < step
        assert all(math.isfinite(token.logprob) for event in shown for token in event.logprobs)
        assert runtime.pool.taken == 0
    assert isinstance(client.run(ask("next"))[-1], Finished)


def test_m5_a_request_without_numbers_does_not_end_its_neighbours(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = runtime.family.logits

    def second_row(hidden: torch.Tensor) -> torch.Tensor:
        """Whichever request is second in a step that both take."""
        made = logits(hidden)
        made[1:] *= NAN
        return made

    monkeypatch.setattr(runtime.family, "logits", second_row)
    streams = [client.start(ask(name, sampling=Sampling(max_tokens=200))) for name in ("a", "b")]
    ends = [drain(events)[-1] for events in streams]
    assert {type(end) for end in ends} == {Finished, Failed}
    assert [end.code for end in ends if isinstance(end, Failed)] == ["not_finite"]


@pytest.mark.parametrize("policy", ["conduit", "full"])
def test_m5_an_image_without_numbers_is_an_error_each_time_and_never_kept(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    encode = runtime.family.encode
    with monkeypatch.context() as patch:
        patch.setattr(runtime.family, "encode", lambda pixels: encode(pixels) * NAN)
        for name in ("once", "twice"):
            last = client.run(ask(name, cache=CacheOptions(policy=policy)))[-1]
            assert isinstance(last, Failed) and last.code == "not_finite"
    runtime.store.entries.flush(10)
    assert runtime.store.admin.entries(EntryFilter(), None, 9).entries == ()
    assert isinstance(client.run(ask("healthy"))[-1], Finished)


def test_m5_the_shadow_s_sums_stay_finite() -> None:
    forbidden = torch.tensor([-INF, 1.0, 0.0])
    assert add_check(ShadowStats(), forbidden, forbidden) == ShadowStats(1, 1, 0.0)
    found = add_check(ShadowStats(), torch.tensor([0.0, 0.0]), torch.tensor([-INF, 0.0]))
    assert math.isfinite(found.kl_sum) and found.kl_sum > 1000
