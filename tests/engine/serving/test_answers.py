"""What a request answers, and that neither length, company nor the step it ends with changes it."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from engine.messages import Accepted, CacheOptions, Event, Finished, Message, Sampling, TextDelta
from engine.passes.kv import SLOT_STEP
from engine.serving.runtime import Runtime
from tests.engine.asking import QUESTION, WAIT, Client, ask, drain
from tests.engine.conftest import PICTURES, Bench, said, stock_inputs, user


def test_events_come_in_order_and_end_once(client: Client) -> None:
    first, *middle, last = client.run(ask("a"))
    assert isinstance(first, Accepted) and first.image_tokens == 49
    assert all(isinstance(event, TextDelta) for event in middle)
    assert isinstance(last, Finished) and last.reason == "length"
    assert last.usage.completion_tokens == 6 and last.usage.prompt_tokens == first.prompt_tokens


SHIFTED_BY = (said("system", "Slowly."), user(0, 1, "What is K?"))


@pytest.mark.parametrize("question", [QUESTION, SHIFTED_BY], ids=["default prompt", "other prompt"])
@pytest.mark.parametrize(
    "cache", [CacheOptions(policy="full"), CacheOptions(refresh_ratio=1.0)], ids=["full", "r = 1"]
)
def test_promise_3_whole_answers_equal_the_library_s(
    client: Client,
    bench: Bench,
    stock: Qwen2_5_VLForConditionalGeneration,
    question: tuple[Message, ...],
    cache: CacheOptions,
) -> None:
    layout = bench.layout(list(question), PICTURES[:2])
    inputs = stock_inputs(bench, layout, PICTURES[:2])
    with torch.no_grad():
        theirs = stock.generate(**inputs, max_new_tokens=60, do_sample=False)[0, layout.length :]
    text, end = client.answer(ask("r", question, cache=cache, sampling=Sampling(max_tokens=60)))
    whole = bench.prompt.tokenizer.decode(theirs.tolist(), skip_special_tokens=True)
    assert text == whole.rstrip("\ufffd")  # what the end cut off of a character
    assert end.usage.completion_tokens == len(theirs)


def test_promise_3_an_answer_that_outgrows_its_buffer_goes_on_as_in_a_large_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = Sampling(max_tokens=700)
    grown, end = client.answer(ask("grown", sampling=longer))
    assert end.usage.prompt_tokens + end.usage.completion_tokens > SLOT_STEP
    monkeypatch.setattr("engine.serving.generation.FIRST_ANSWER_SLOTS", 1024)
    assert client.answer(ask("at once", sampling=longer))[0] == grown


def test_stop_string_equal_to_the_whole_output(client: Client) -> None:
    text, _ = client.answer(ask("plain"))
    cut, end = client.answer(ask("cut", sampling=Sampling(max_tokens=6, stop=(text,))))
    assert cut == "" and end.reason == "stop"


def test_one_token_answers(client: Client) -> None:
    _, end = client.answer(ask("one", sampling=Sampling(max_tokens=1)))
    assert end.usage.completion_tokens == 1 and end.reason == "length"


def test_end_of_answer_as_the_first_token(
    client: Client, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.family, "stop_tokens", frozenset(range(runtime.family.shape.vocab)))
    text, end = client.answer(ask("eos"))
    assert text == "" and end.reason == "stop" and end.usage.completion_tokens == 1


def test_answers_longer_than_the_first_buffer(client: Client) -> None:
    _, end = client.answer(ask("long", sampling=Sampling(max_tokens=450)))
    assert end.usage.completion_tokens == 450


def test_concurrent_requests_answer_as_alone(client: Client) -> None:
    questions = [(said("system", "x" * n), user(0, 1, f"What is {n}?")) for n in range(1, 7)]
    alone = [client.answer(ask(f"a{n}", question))[0] for n, question in enumerate(questions)]
    streams = [client.start(ask(f"b{n}", question)) for n, question in enumerate(questions)]
    together = ["".join(e.text for e in drain(events) if isinstance(e, TextDelta)) for events in streams]
    assert together == alone


def test_events_of_one_step_come_together(client: Client) -> None:
    """Of requests that share a listener, which is woken once a step and not once a request."""
    steps: queue.Queue[Sequence[Event]] = queue.Queue()
    for name in ("a", "b"):
        client.worker.submit(ask(name, sampling=Sampling(max_tokens=40)), steps.put)
    seen: list[Sequence[Event]] = []
    while sum(isinstance(event, Finished) for step in seen for event in step) < 2:
        seen.append(steps.get(timeout=WAIT))
    texts = [[event.request_id for event in step if isinstance(event, TextDelta)] for step in seen]
    assert ["a", "b"] in map(sorted, texts)
    assert all(len(names) == len(set(names)) for names in texts), "a step gives each request one token"
