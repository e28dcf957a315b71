"""Conversations over HTTP: what was answered is part of the chain when it is sent back, and edits are told of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from demo.asking import Answer, ask
from demo.questions import make_example
from tests.e2e.live import Live, body

FULL = {"policy": "full"}


def whole(live: Live, asked: dict[str, Any]) -> Answer:
    """Without a stream."""
    found = live.api.post("/v1/chat", json=asked).json()
    return Answer(found["choices"][0]["message"]["content"], 0, 0, found["kv_report"], found["usage"])


def streamed(live: Live, asked: dict[str, Any]) -> Answer:
    return ask(live.api, asked)


@pytest.mark.parametrize("send", [whole, streamed])
@pytest.mark.parametrize("then", [whole, streamed])
def test_an_answer_sent_back_unchanged_is_not_computed_again(live: Live, send: Any, then: Any) -> None:
    example = make_example(np.random.default_rng([51, send is whole, then is whole]), "single_hop", 2)
    asked = {**body(example, live.url, FULL), "max_tokens": 40}
    first = send(live, asked)
    history = [*asked["messages"], {"role": "assistant", "content": first.text}]
    follow_up = {**asked, "messages": [*history, {"role": "user", "content": "And K?"}]}
    second = then(live, follow_up)
    said = live.started.worker.runtime.prompt.tokenizer.encode(first.text, add_special_tokens=False).ids
    prompt, exact = first.usage["prompt_tokens"], second.report["chained_exact_tokens"]
    # The token drawn last has no row yet; a random model's text may tokenise to other ids.
    assert exact >= prompt
    if len(said) == first.usage["completion_tokens"] - 1:
        assert exact == prompt + len(said)
    assert second.usage["prompt_tokens_details"]["cached_tokens"] == exact
    expected = then(live, {**follow_up, "cache": {"policy": "full", "chain": "off"}})
    assert second.text == expected.text


def test_text_behind_an_edit_is_reused_where_that_is_asked_for(live: Live) -> None:
    example = make_example(np.random.default_rng(52), "dialogue", 3)
    asked = body(example, live.url, FULL)
    history = [{"role": "system", "content": "You answer from the pages."}, *asked["messages"]]
    if example.system is not None:
        del history[1]
    live.api.post("/v1/chat", json={**asked, "messages": history}).raise_for_status()
    edited = [{"role": "system", "content": "Please read the pages with care."}, *history[1:]]
    reports = {
        turns: ask(live.api, {**asked, "messages": edited, "cache": {"mode": "read", "turns": turns}})
        for turns in ("compute", "reuse")
    }
    assert reports["compute"].report["turns_reused_tokens"] == 0
    reused = reports["reuse"].report["turns_reused_tokens"]
    assert reused > 8
    cached = reports["reuse"].usage["prompt_tokens_details"]["cached_tokens"]
    report = reports["reuse"].report
    assert cached == reused + report["reused_tokens"] + report["chained_exact_tokens"]
    metrics = live.api.get("/metrics").text
    assert f"conduit_turns_reused_tokens_total {float(reused)}" in metrics


def test_an_unknown_use_of_turns_is_refused(live: Live) -> None:
    answer = live.api.post("/v1/chat", json={"prompt": "x", "cache": {"turns": "sometimes"}})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "cache.turns"
