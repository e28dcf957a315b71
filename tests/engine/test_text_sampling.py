"""From logits to text: sampling, characters that arrive in pieces, stop strings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.answer.sampling import Sampler, check_sampling, keep_likely, likely_logprobs
from engine.answer.text import Detokenizer, StopStrings
from engine.errors import InvalidSampling
from engine.messages import Sampling


class ByteTokenizer:
    """One token a byte."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def detokenize(data: bytes) -> list[str]:
    stream = Detokenizer(ByteTokenizer())
    return [*(stream.add(byte) for byte in data), stream.flush()]


@given(st.text())
def test_pieces_add_up_to_the_text_and_never_split_a_character(text: str) -> None:
    pieces = detokenize(text.encode())
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("text", ["ab\U0001f600", "한국", "e\u0301"])
def test_f1_a_character_cut_off_by_max_tokens_leaves_no_replacement(text: str) -> None:
    assert "\ufffd" not in "".join(detokenize(text.encode()[:-1]))


@given(st.binary(max_size=12))
def test_pieces_of_any_bytes_equal_decoding_them_at_once(data: bytes) -> None:
    whole = data.decode(errors="replace")
    assert "".join(detokenize(data)) == whole.removesuffix("\ufffd")


def test_a_good_character_behind_bad_bytes_is_not_lost() -> None:
    assert "".join(detokenize(b"\xf0\x9f\xe4\xbd\xa0!")) == "\ufffd\u4f60!"


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["own fox"], ["the br", "own", " fox", " ran"], "the br"),
        (["fox", "brown fox"], ["the brown", " fox"], "the "),
        (["abc"], ["abc"], ""),
        (["abc"], ["ab", "ab", "c!"], "ab"),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["end"], ["the en"], "the en"),
        (["\n\n"], ["one\n", "\ntwo"], "one"),
    ],
)
def test_f2_stop_strings_cut_exactly(stops: list[str], pieces: list[str], expected: str) -> None:
    stream = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += stream.add(piece)
        if stream.found:
            break
    assert (shown if stream.found else shown + stream.flush()) == expected


@given(
    st.text(alphabet="ab", max_size=20), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)
)
def test_stop_strings_equal_cutting_the_whole_text(text: str, stops: list[str]) -> None:
    stream = StopStrings(stops)
    shown = ""
    for character in text:
        shown += stream.add(character)
        if stream.found:
            break
    if not stream.found:
        shown += stream.flush()
    # The stop that is complete first ends the answer, which is what a reader of a stream would see.
    ends = [i for i in range(len(text) + 1) if any(text[:i].endswith(stop) for stop in stops)]
    whole = text if not ends else text[: ends[0]]
    cut = max((len(stop) for stop in stops if whole.endswith(stop)), default=0) if ends else 0
    assert shown == whole[: len(whole) - cut]


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


def test_logprobs_are_those_of_the_raw_model() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    own, top = likely_logprobs(logits, 2, 2)
    expected = torch.log_softmax(logits, 0)
    assert own == pytest.approx(float(expected[2]))
    assert [token for token, _ in top] == [0, 1] and top[0][1] == pytest.approx(float(expected[0]))
    assert likely_logprobs(logits, 0, 0)[1] == []
