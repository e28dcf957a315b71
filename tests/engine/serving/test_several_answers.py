"""`n`: several answers drawn from one prefill."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch

from engine.messages import (
    CacheOptions,
    Constraint,
    Ended,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Sampling,
    TextDelta,
)
from engine.passes import decode as decoding
from engine.serving import generation as generations
from engine.serving.runtime import Runtime
from tests.engine.asking import Client, ask, drain

WARM = Sampling(max_tokens=24, temperature=1.0, seed=11)


def answers_of(events: list[Event]) -> dict[int, tuple[str, str]]:
    """Text and reason of each answer."""
    texts: dict[int, str] = defaultdict(str)
    reasons = {}
    for event in events:
        if isinstance(event, TextDelta):
            assert event.index not in reasons, "text behind the end of its answer"
            texts[event.index] += event.text
        elif isinstance(event, Ended | Finished):
            assert event.index not in reasons, "an answer ended twice"
            reasons[event.index] = event.reason
    return {index: (texts[index], reason) for index, reason in reasons.items()}


def run(client: Client, request: GenerateRequest) -> dict[int, tuple[str, str]]:
    events = client.run(request)
    assert isinstance(events[-1], Finished), events[-1]
    return answers_of(events)


@pytest.mark.parametrize("policy", ["full", "conduit"])
def test_each_answer_equals_that_of_a_request_of_its_own(client: Client, policy: str) -> None:
    cache = CacheOptions(policy=policy, chain="off")
    several = run(client, ask("n", answers=4, sampling=WARM, cache=cache))
    alone = {}
    for index in range(4):
        seed = Sampling(max_tokens=24, temperature=1.0, seed=11 + index)
        alone[index] = run(client, ask(f"alone {index}", sampling=seed, cache=cache))[0]
    assert several == alone
    assert len(set(several.values())) > 1, "answers of different seeds differ"


def test_answers_of_different_lengths_end_each_for_itself(client: Client) -> None:
    lone = [
        run(client, ask(f"{i}", sampling=Sampling(max_tokens=24, temperature=1.0, seed=i)))[0]
        for i in range(6)
    ]
    stop = lone[0][0][3:6]
    ended = [text.find(stop) for text, _ in lone]
    sampling = Sampling(max_tokens=24, temperature=1.0, seed=0, stop=(stop,))
    several = run(client, ask("n", answers=6, sampling=sampling))
    assert several[0] == (lone[0][0][:3], "stop")
    for index, at in enumerate(ended):
        expected = (lone[index][0], "length") if at < 0 else (lone[index][0][:at], "stop")
        assert several[index] == expected
    assert {reason for _, reason in several.values()} == {"stop", "length"}


def test_usage_counts_the_prompt_once_and_every_token_drawn(client: Client) -> None:
    one = client.run(ask("one"))[-1]
    three = client.run(ask("three", answers=3))[-1]
    assert isinstance(one, Finished) and isinstance(three, Finished)
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens


def test_the_prompt_is_computed_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.answer(ask("warm"))
    passes = []
    reuse = generations.Prefill.reuse
    monkeypatch.setattr(generations.Prefill, "reuse", lambda *given: passes.append(1) or reuse(*given))
    run(client, ask("n", answers=8, cache=CacheOptions(chain="off")))
    assert len(passes) == 1


def test_refined_rows_reach_every_answer(client: Client) -> None:
    cache = CacheOptions(refine=16, refresh_ratio=0.0, chain="off")
    several = run(client, ask("n", answers=3, sampling=WARM, cache=cache))
    for index in range(3):
        seed = Sampling(max_tokens=24, temperature=1.0, seed=11 + index)
        assert several[index] == run(client, ask(f"{index}", sampling=seed, cache=cache))[0]


def test_forms_are_followed_by_each_answer(client: Client) -> None:
    form = Constraint("choice", '["left", "right", "middle"]')
    sampling = Sampling(max_tokens=24, temperature=1.5, seed=3, constraint=form)
    several = run(client, ask("n", answers=8, sampling=sampling))
    assert {text for text, _ in several.values()} <= {"left", "right", "middle"}
    assert len(several) == 8


def test_all_memory_comes_back_and_an_abort_ends_all(client: Client, runtime: Runtime) -> None:
    events = client.start(ask("n", answers=5, sampling=Sampling(max_tokens=900)))
    while not isinstance(events.get(timeout=60), TextDelta):
        pass
    client.worker.abort("n")
    *_, last = drain(events)
    assert isinstance(last, Failed) and last.code == "aborted"
    run(client, ask("after"))
    assert runtime.pool.taken == 0


def test_an_answer_that_fails_ends_the_request_and_no_other(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = client.start(ask("other", sampling=Sampling(max_tokens=40)))
    step = decoding.decode_step

    def broken(family: object, decoders: list[object], *given: object) -> torch.Tensor:
        logits = step(family, decoders, *given)  # type: ignore[arg-type]
        if len(decoders) > 3:
            logits[-2] = np.nan
        return logits

    monkeypatch.setattr("engine.serving.live.decode_step", broken)
    events = client.run(ask("n", answers=4, sampling=Sampling(max_tokens=40)))
    ends = [event for event in events if isinstance(event, Failed | Finished)]
    assert len(ends) == 1 and isinstance(ends[0], Failed)
    assert isinstance(drain(other)[-1], Finished)
    assert runtime.pool.taken == 0
