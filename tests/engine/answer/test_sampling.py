"""From logits to tokens: filters, penalties, seeds, log probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.answer.sampling import LEAST_LOGPROB, Sampler, check_sampling, keep_likely, likely_logprobs
from engine.errors import InvalidSampling, NotFinite
from engine.messages import Sampling


def sampler(vocab: int, prompt: tuple[int, ...] = (), **changes: Any) -> Sampler:
    return Sampler(Sampling(**changes), prompt, vocab)


def test_greedy_takes_the_largest() -> None:
    assert sampler(3).draw(torch.tensor([0.0, 3.0, 1.0])) == 1


def test_a_seed_repeats_and_seeds_differ() -> None:
    logits = torch.zeros(1000)
    draws = {n: [sampler(1000, temperature=1.0, seed=n).draw(logits) for _ in range(2)] for n in (1, 2, -5)}
    assert all(first == second for first, second in draws.values())
    assert len({tuple(pair) for pair in draws.values()}) == 3


def test_without_a_seed_requests_differ() -> None:
    logits = torch.zeros(100_000)
    assert len({sampler(100_000, temperature=1.0).draw(logits) for _ in range(4)}) > 1


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((0, 1.0, 0.0), [0.1, 0.5, 0.15, 0.25]),
        ((0, 0.7, 0.0), [0, 2 / 3, 0, 1 / 3]),
        ((0, 0.5, 0.0), [0, 1, 0, 0]),
        ((0, 1e-9, 0.0), [0, 1, 0, 0]),
        ((2, 1.0, 0.0), [0, 2 / 3, 0, 1 / 3]),
        ((9, 1.0, 0.0), [0.1, 0.5, 0.15, 0.25]),
        ((0, 1.0, 0.4), [0, 2 / 3, 0, 1 / 3]),
        ((3, 0.8, 0.0), [0, 2 / 3, 0, 1 / 3]),
        ((0, 1.0, 1.0), [0, 1, 0, 0]),
    ],
)
def test_filters_keep_what_they_say(filters: tuple[int, float, float], expected: list[float]) -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=torch.float64)
    assert keep_likely(probabilities, *filters).tolist() == pytest.approx(expected)


def test_temperature_and_top_p_shape_the_draws() -> None:
    drawing = sampler(3, temperature=0.7, top_p=0.9, seed=0)
    draws = [drawing.draw(torch.tensor([2.0, 1.0, -9.0])) for _ in range(300)]
    share = draws.count(0) / len(draws)
    expected = torch.softmax(torch.tensor([2.0, 1.0]) / 0.7, 0)[0]
    assert 2 not in draws and abs(share - float(expected)) < 0.08


def test_penalties_and_bias_move_the_choice() -> None:
    logits = torch.tensor([2.0, 1.5, -1.0])
    assert sampler(3, logit_bias=((2, 100.0),)).draw(logits) == 2
    assert sampler(3, prompt=(0,), repetition_penalty=2.0).draw(logits) == 1
    assert sampler(3, prompt=(0,), presence_penalty=2.0).draw(logits) == 0  # only the answer counts
    repeating = sampler(3, presence_penalty=0.4, frequency_penalty=0.2)
    assert [repeating.draw(logits) for _ in range(4)] == [0, 1, 0, 0]
    assert logits.tolist() == [2.0, 1.5, -1.0]


def test_presence_penalty_is_the_same_after_every_use_and_frequency_penalty_grows() -> None:
    logits = torch.tensor([2.0, 0.8])
    once = sampler(2, presence_penalty=0.5)
    assert [once.draw(logits) for _ in range(5)] == [0, 0, 0, 0, 0]
    each = sampler(2, frequency_penalty=0.5)
    assert [each.draw(logits) for _ in range(5)] == [0, 0, 0, 1, 0]


def test_a_bias_holds_for_every_token_of_the_answer() -> None:
    biased = sampler(3, logit_bias=((0, -1.0), (2, 2.0), (2, 1.5)))
    assert [biased.draw(torch.tensor([2.0, 1.5, -1.0])) for _ in range(3)] == [2, 2, 2]


def test_repetition_penalty_is_for_prompt_and_answer() -> None:
    repeating = sampler(2, repetition_penalty=2.0)
    assert [repeating.draw(torch.tensor([2.0, 1.5])) for _ in range(3)] == [0, 1, 0]


def test_a_penalty_below_0_asks_for_what_was_said() -> None:
    for penalty in ("presence_penalty", "frequency_penalty"):
        again = sampler(2, **{penalty: -1.0})
        assert again.draw(torch.tensor([0.0, 0.5])) == 1
        assert again.draw(torch.tensor([1.0, 0.5])) == 1


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.1}, {"min_p": 0.9}])
def test_each_filter_works_alone(filters: dict[str, Any]) -> None:
    drawing = sampler(3, temperature=2.0, seed=0, **filters)
    assert {drawing.draw(torch.tensor([1.0, 2.0, 0.5])) for _ in range(50)} == {1}


def test_the_draws_of_one_request_differ() -> None:
    drawing = sampler(100_000, temperature=1.0, seed=3)
    assert len({drawing.draw(torch.zeros(100_000)) for _ in range(4)}) > 1


def test_repetition_penalty_lowers_negative_logits_too() -> None:
    assert sampler(2, prompt=(0,), repetition_penalty=1.5).draw(torch.tensor([-1.0, -1.2])) == 1


def test_a_tiny_temperature_is_nearly_greedy() -> None:
    assert sampler(3, temperature=1e-310).draw(torch.tensor([1.0, 3.0, 2.0])) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "less than 1"),
        ({"logit_bias": ((7, 1.0),)}, "no token 7"),
        ({"logit_bias": ((-1, 1.0),)}, "no token -1"),
        ({"logit_bias": ((0, 1.0),) * 1025}, "at most 1024"),
    ],
)
def test_sampling_that_cannot_be_served_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSampling, match=message):
        check_sampling(Sampling(**changes), 7)
    check_sampling(Sampling(max_tokens=1, logit_bias=((6, 1.0),) * 1024), 7)


def test_logprobs_are_those_of_the_raw_model() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    own, top = likely_logprobs(logits, 2, 2)
    expected = torch.log_softmax(logits, 0)
    assert own == pytest.approx(float(expected[2]))
    assert [token for token, _ in top] == [0, 1] and top[0][1] == pytest.approx(float(expected[0]))
    assert likely_logprobs(logits, 0, 0)[1] == []


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "logits",
    [[NAN, NAN, NAN], [0.0, NAN, 1.0], [0.0, INF, 1.0], [INF, -INF, NAN], [-INF, -INF, -INF]],
    ids=str,
)
def test_m5_logits_that_say_nothing_draw_no_token(logits: list[float], temperature: float) -> None:
    with pytest.raises(NotFinite, match="not finite"):
        sampler(3, temperature=temperature).draw(torch.tensor(logits))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_a_model_forbids_is_never_drawn_and_has_a_number(temperature: float) -> None:
    logits = torch.tensor([-INF, 0.0, -INF])
    assert {sampler(3, temperature=temperature).draw(logits) for _ in range(20)} == {1}
    own, top = likely_logprobs(logits, 0, 3)
    assert own == LEAST_LOGPROB and sorted(logprob for _, logprob in top) == [LEAST_LOGPROB, LEAST_LOGPROB, 0]


def test_nothing_ends_an_answer_before_its_least_length() -> None:
    sampler = Sampler(Sampling(min_tokens=2), [], 3, ends=[0, 2])
    logits = torch.tensor([9.0, 1.0, 5.0])
    assert [sampler.draw(logits) for _ in range(4)] == [1, 1, 0, 0]


def test_the_form_of_an_answer_goes_before_its_least_length() -> None:
    class Over:
        def allow(self, logits: torch.Tensor) -> torch.Tensor:
            return logits.index_fill(0, torch.tensor([0, 1]), float("-inf"))

        def take(self, token: int) -> None: ...

    sampler = Sampler(Sampling(min_tokens=2), [], 3, follower=Over(), ends=[2])  # type: ignore[arg-type]
    assert sampler.draw(torch.tensor([9.0, 1.0, 5.0])) == 2


def test_answers_of_one_request_have_seeds_that_count_up() -> None:
    logits = torch.linspace(0, 1, 50)

    def drawn(seed: int, number: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), [], 50, number=number)
        return [sampler.draw(logits) for _ in range(8)]

    assert drawn(7, 2) == drawn(9, 0) != drawn(7, 0)
