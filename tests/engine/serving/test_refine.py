"""Requests that refine: what they answer and report, whoever runs beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.messages import CacheOptions, Event, Finished, GenerateRequest, Sampling, TextDelta
from engine.passes.decode import Decoder, decode_step
from engine.passes.forward import Work
from engine.policies.known import make_policy
from engine.reports import KvReport
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.contract import arms
from tests.engine.asking import Client, ask, drain
from tests.engine.conftest import PICTURES, Bench, said, user

QUESTION = (said("system", "Read them all."), user(0, "and", 1, "What is K on the red page?"))
TOKENS = 12
EVERYTHING = 4096
# A character whose last bytes were not said.
CUT = "\N{REPLACEMENT CHARACTER}"


def asking(name: str, refine: int | None, policy: str = "reuse", tokens: int = TOKENS) -> GenerateRequest:
    cache = CacheOptions(policy=policy, refine=refine)
    return ask(name, QUESTION, sampling=Sampling(max_tokens=tokens), cache=cache)


@torch.no_grad()
def expected(bench: Bench) -> str:
    """The first token of plain reuse, and what full prefill says behind it."""
    policy = make_policy("reuse", {})
    asked = arms.ask(bench, list(QUESTION), policy, PICTURES[:2])
    layout, full = asked.layout, asked.prefill()
    said = [int(asked.run(policy, 0.0)[1].logits.argmax())]
    full.full()
    decoder = Decoder(bench.pool, full.kv, layout.length, layout.next_position, layout.length + TOKENS)
    while len(said) < TOKENS and said[-1] not in bench.family.stop_tokens:
        said.append(int(decode_step(bench.family, [decoder], said[-1:], [Work()])[0].argmax()))
    text: str = bench.prompt.tokenizer.decode(said, skip_special_tokens=True)
    return text.rstrip(CUT)


def test_tokens_behind_the_first_are_those_of_full_prefill(client: Client, bench: Bench) -> None:
    stale, _ = client.answer(asking("stale", 0))
    swept, _ = client.answer(asking("swept", EVERYTHING))
    assert swept.rstrip(CUT) == expected(bench) != stale.rstrip(CUT)


def test_report_counts_refined_rows(client: Client) -> None:
    _, plain = client.answer(asking("plain", 0))
    _, some = client.answer(asking("some", 5, tokens=3))
    _, swept = client.answer(asking("swept", EVERYTHING))
    assert plain.report.refined == 0 and some.report.refined == 2 * 5
    assert plain.report.visual_tokens < swept.report.refined < swept.usage.prompt_tokens


@pytest.mark.parametrize(("policy", "ratio"), [("full", None), ("conduit", 1.0)])
def test_full_prefill_has_nothing_to_refine(client: Client, policy: str, ratio: float | None) -> None:
    request = asking("full", 7)
    cache = CacheOptions(policy=policy, refresh_ratio=ratio, refine=7)
    _, finished = client.answer(replace(request, cache=cache))
    assert finished.report.refined == 0


def test_the_service_s_default_applies_where_a_request_says_nothing(runtime: Runtime) -> None:
    worker = Worker(replace(runtime, defaults=replace(runtime.defaults, refine=4)))
    worker.start()
    try:
        client = Client(worker)
        counts = [client.answer(asking(f"{n}", n, tokens=3))[1].report.refined for n in (None, 0, 6)]
    finally:
        worker.stop(0)
    assert counts == [8, 0, 12]


def test_answers_do_not_depend_on_who_refines_beside_them(client: Client, runtime: Runtime) -> None:
    """A round has room for the rows of one of them at a time."""
    rows = (3, 9, 20, 0)
    alone = [client.answer(asking(f"alone{n}", n)) for n in rows]
    worker = Worker(runtime, Limits(waiting=8, running=4, refined_rows=8))
    worker.start()
    try:
        started = [Client(worker).start(asking(f"beside{n}", n)) for n in rows]
        ends = [drain(events) for events in started]
    finally:
        worker.stop(0)
    assert [text_of(events) for events in ends] == [text for text, _ in alone]
    assert [report_of(events).refined for events in ends] == [end.report.refined for _, end in alone]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def report_of(events: list[Event]) -> KvReport:
    assert isinstance(events[-1], Finished)
    return events[-1].report
