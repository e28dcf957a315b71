"""What options of a request cost: several answers of one prefill, and a form that the answer must have."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.result import NotMeasured
from benchmarks.serve_load import Asked, Round, drive

ANSWERS = 4
# It ends behind every answer that is asked for here, so both sides draw as many tokens.
FORM = {"regex": "[a-z ]{2000}"}


async def features(url: str, make: Callable[[], Asked], rounds: int) -> dict[str, Any]:
    """Each option and its alternatives in turn, on prompts that `make` makes; medians over `rounds`. Without `n`
    one asks again and again, or all at once."""
    several, in_turn, at_once, formed, free = [], [], [], [], []
    for _ in range(rounds):
        asked = with_options(make(), temperature=1.0, ignore_eos=True)
        several.append(await _run(url, [with_options(asked, n=ANSWERS)]))
        each = [with_options(asked, seed=seed) for seed in range(ANSWERS)]
        in_turn.append(await _run(url, each, users=1))
        at_once.append(await _run(url, each, users=ANSWERS))
        asked = make()
        formed.append(await _run(url, [with_options(asked, structured_outputs=FORM)]))
        free.append(await _run(url, [with_options(asked, ignore_eos=True)]))
    return {
        "n4_seconds": median(done.seconds for done in several),
        "4_requests_seconds": median(done.seconds for done in in_turn),
        "4_requests_at_once_seconds": median(done.seconds for done in at_once),
        "constrained_itl_ms": 1000 * median(map(seconds_a_token, formed)),
        "free_itl_ms": 1000 * median(map(seconds_a_token, free)),
        "tokens": {"n4": several[-1].samples[0].tokens, "constrained": formed[-1].samples[0].tokens},
    }


def with_options(asked: Asked, **options: object) -> Asked:
    return replace(asked, body=json.dumps({**json.loads(asked.body), **options}).encode())


def seconds_a_token(done: Round) -> float:
    """Of one answer, behind its first token."""
    (sample,) = done.samples
    return (sample.total - sample.ttft) / (sample.tokens - 1)


async def _run(url: str, requests: Sequence[Asked], users: int = 1) -> Round:
    done = await drive(url, users, requests)
    if done.errors:
        raise NotMeasured(f"a request failed: {done.errors[0]}")
    return done
