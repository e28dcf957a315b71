"""A conversation over a restart of the service, over real HTTP and a real LMDB store."""

from __future__ import annotations

import numpy as np
import pytest

from demo.questions import make_example
from tests.e2e.conftest import Start
from tests.e2e.live import tokens

ASKED = make_example(np.random.default_rng(21), "system", 2)


@pytest.mark.parametrize("policy", ["full", "conduit"])
def test_promise_2_a_conversation_goes_on_exactly_after_a_restart(start: Start, policy: str) -> None:
    live = start()
    live.ask(ASKED, policy="full")
    expected = live.ask(ASKED, policy="full", chain="off")
    live.restart(memory_bytes=0)
    answer = live.ask(ASKED, policy=policy)
    assert tokens(answer) == tokens(expected)
    assert answer.report["chained_tokens"] == answer.report["visual_tokens"]
    assert answer.report["chained_exact_tokens"] == answer.usage["prompt_tokens"] - 1
    assert {image["tier"] for image in answer.report["images"]} == {"chain"}
    stats = live.stats()
    assert stats["chains"]["loaded"] > 0 and stats["chains"]["lost"] == {}
    assert stats["chains_by_tier"]["lmdb"]["exact"]["entries"] > 0
    assert live.entry_keys("chain")


def test_after_a_restart_and_a_clear_there_is_nothing_to_go_on_from(start: Start) -> None:
    live = start()
    live.ask(ASKED, policy="full")
    live.restart()
    live.api.post("/v1/cache/clear", json={}).raise_for_status()
    assert live.entry_keys("chain") == set()
    answer = live.ask(ASKED, policy="full")
    assert answer.report["chained_exact_tokens"] == 0
