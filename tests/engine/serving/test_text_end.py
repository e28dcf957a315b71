"""How an answer ends: what of its text is shown, why it is said to have ended, and which tokens are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engine.answer.detokenizer import UNDECIDED
from engine.messages import Finished, Sampling, TextDelta
from engine.serving.runtime import Runtime
from tests.engine.asking import Client, ask, drain

Says = Callable[..., tuple[str, Finished, list[str]]]
TEXT = "four is K there."


@pytest.fixture
def says(client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Says:
    """A model that says `tokens`, or the tokens of a text, and then ends its answer."""

    def answer(tokens: str | list[int], **sampling: object) -> tuple[str, Finished, list[str]]:
        ids = tokens_of(runtime, tokens) if isinstance(tokens, str) else tokens
        spoken: Iterator[int] = iter([*ids, min(runtime.family.stop_tokens)])
        monkeypatch.setattr("engine.serving.answering.Sampler.draw", lambda *_: next(spoken))
        asked = {"max_tokens": 100, "logprobs": 0, **sampling}
        *events, end = drain(client.start(ask("r", sampling=Sampling(**asked))))  # type: ignore[arg-type]
        assert isinstance(end, Finished)
        shown = [event for event in events if isinstance(event, TextDelta)]
        reported = [token.token for event in (*shown, end) for token in event.logprobs]
        return "".join(event.text for event in shown), end, reported

    return answer


def tokens_of(runtime: Runtime, text: str) -> list[int]:
    ids: list[int] = runtime.prompt.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def test_each_token_of_the_answer_is_reported_but_the_one_that_ends_it(says: Says, runtime: Runtime) -> None:
    text, end, reported = says(TEXT)
    assert text == TEXT == "".join(reported)
    assert end.reason == "stop" and end.usage.completion_tokens == len(tokens_of(runtime, TEXT)) + 1


def test_an_answer_cut_by_its_length_says_so(says: Says) -> None:
    text, end, reported = says(TEXT, max_tokens=2)
    assert end.reason == "length" and end.usage.completion_tokens == 2
    assert text == "".join(reported) and TEXT.startswith(text) and text != TEXT


def test_a_stop_string_that_is_complete_with_the_last_token_is_why_it_ended(
    says: Says, runtime: Runtime
) -> None:
    text, end, reported = says(TEXT, stop=(" there",), max_tokens=len(tokens_of(runtime, "four is K there")))
    assert (text, end.reason) == ("four is K", "stop")
    assert "".join(reported) == "four is K"


@pytest.mark.parametrize(("limit", "reason"), [(100, "stop"), (4, "length")])
def test_what_was_held_for_a_stop_string_is_shown_when_the_answer_ends(
    says: Says, limit: int, reason: str
) -> None:
    text, end, reported = says("four is K there", stop=(" there is",), max_tokens=limit)
    assert text == "four is K there" == "".join(reported)
    assert end.reason == reason


def test_tokens_behind_the_last_text_are_reported_with_the_end(says: Says, runtime: Runtime) -> None:
    """Two bytes of a character of three: no text, but tokens that were drawn."""
    half = tokens_of(runtime, "\u4f60")[:2]
    text, end, reported = says([*tokens_of(runtime, "four"), *half])
    assert text == "four" and len(reported) == len(tokens_of(runtime, "four")) + 2
    assert len(end.logprobs) == 2


def test_a_stop_string_that_only_the_end_of_the_answer_shows_is_why_it_ended(
    says: Says, runtime: Runtime
) -> None:
    """Bytes that are no character are held until it is certain, and by then the answer may be as long as it may be."""
    broken = [tokens_of(runtime, "\u4f60")[0]] * (UNDECIDED + 1)
    four = tokens_of(runtime, "four")
    text, end, reported = says([*four, *broken], stop=("\ufffd",), max_tokens=len(four) + len(broken))
    assert (text, end.reason) == ("four", "stop")
    assert "".join(reported) == "four"


def test_a_stop_token_ends_the_answer_and_is_not_shown(says: Says, runtime: Runtime) -> None:
    ids = tokens_of(runtime, TEXT)
    text, end, reported = says(TEXT, stop_tokens=(ids[2],))
    assert end.reason == "stop" and end.usage.completion_tokens == 3
    assert text == runtime.prompt.tokenizer.decode(ids[:2]) == "".join(reported)


def test_an_answer_that_ignores_its_end_goes_on_behind_it(says: Says, runtime: Runtime) -> None:
    stop, ids = min(runtime.family.stop_tokens), tokens_of(runtime, TEXT)
    text, end, _ = says([*ids, stop, *ids], ignore_eos=True, max_tokens=2 * len(ids) + 1)
    assert text == TEXT + TEXT and end.reason == "length"
    assert end.usage.completion_tokens == 2 * len(ids) + 1


def test_a_stop_string_counts_from_the_least_length_on(says: Says, runtime: Runtime) -> None:
    ids = tokens_of(runtime, TEXT)
    text, end, _ = says([*ids, *ids], stop=("is",), min_tokens=len(ids) + 1)
    assert (text, end.reason) == (f"{TEXT}four ", "stop")
