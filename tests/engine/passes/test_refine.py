"""Refining: prompt rows computed anew while the answer is written, until the KV is that of a full prefill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.messages import Message
from engine.passes.decode import Decoder, decode_step
from engine.passes.forward import Work
from engine.passes.refine import Refiner, first_stale
from engine.passes.refresh import Prefill
from engine.policies.base import AnyPolicy
from engine.policies.known import make_policy
from tests.contract.arms import Asked, ask
from tests.engine.conftest import PICTURES, SHIFTED, Bench, user

TOKENS = 12
EVERYTHING = 10_000


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def refined(
    asked: Asked, policy: AnyPolicy, count: int, ratio: float = 0.1, steps: int = EVERYTHING
) -> tuple[Prefill, Refiner]:
    prefill, found = asked.run(policy, ratio)
    refiner = Refiner(asked.bench.family, prefill.prompt_rows, first_stale(asked.layout, found.exact), Work())
    while refiner.left and steps:
        refiner.step(prefill.kv, count)
        steps -= 1
    return prefill, refiner


def greedy(asked: Asked, prefill: Prefill, first: int) -> list[int]:
    """Tokens behind `first`."""
    layout, family, pool = asked.layout, asked.bench.family, asked.bench.pool
    decoder = Decoder(pool, prefill.kv, layout.length, layout.next_position, layout.length + TOKENS)
    said = [first]
    for _ in range(TOKENS):
        said.append(int(decode_step(family, [decoder], said[-1:], [Work()])[0].argmax()))
    return said[1:]


CONVERSATIONS: dict[str, list[Message]] = {
    "shifted": SHIFTED,
    "exact first image": [user(0, "and", 1, 2, "What is K?")],
    "image first and last": [user(0, 1, 2)],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("count", [1, 7, EVERYTHING])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("conduit", {}),
        ("conduit", {"preset": "paper"}),
        ("cacheblend", {}),
        ("impact", {"correction": "shift"}),
        ("impact", {"correction": "ridge"}),
    ],
)
def test_swept_kv_is_that_of_a_full_prefill(
    bench: Bench, conversation: str, count: int, name: str, options: dict[str, object]
) -> None:
    policy = make_policy(name, options)
    asked = ask(bench, CONVERSATIONS[conversation], policy)
    prefill, refiner = refined(asked, policy, count)
    full, length = asked.prefill(), asked.layout.length
    full.full()
    assert torch.allclose(prefill.kv.keys[:, :, :length], full.kv.keys[:, :, :length], atol=1e-4)
    assert torch.allclose(prefill.kv.values[:, :, :length], full.kv.values[:, :, :length], atol=1e-4)
    exact = conversation != "shifted" and policy.keeps_exact
    assert refiner.refined == length - asked.layout.spans[1 if exact else 0].start and refiner.left == 0


def test_rows_are_exact_from_the_front_on(bench: Bench) -> None:
    """After two steps of ten rows these are exact, and what is behind them is as it was."""
    policy = make_policy("conduit", {})
    asked = ask(bench, SHIFTED, policy)
    stale, _ = asked.run(policy, 0.1)
    prefill, refiner = refined(asked, policy, 10, steps=2)
    full, end = asked.prefill(), asked.layout.spans[0].start + 20
    full.full()
    assert refiner.refined == 20 and refiner.left == asked.layout.length - end
    assert torch.allclose(prefill.kv.keys[:, :, :end], full.kv.keys[:, :, :end], atol=1e-4)
    assert torch.equal(prefill.kv.keys[:, :, end:], stale.kv.keys[:, :, end:])
    assert not torch.allclose(stale.kv.keys[:, :, :end], full.kv.keys[:, :, :end], atol=1e-3)


def test_tokens_behind_the_first_are_those_of_full_prefill(bench: Bench) -> None:
    policy = make_policy("reuse", {})
    asked = ask(bench, SHIFTED, policy)
    full = asked.prefill()
    full.full()
    differing = 0
    for first in range(40):
        stale, _ = asked.run(policy, 0.0)
        swept, _ = refined(asked, policy, EVERYTHING, 0.0)
        wanted = greedy(asked, full, first)
        assert greedy(asked, swept, first) == wanted
        differing += greedy(asked, stale, first) != wanted
    assert differing > 0


def test_nothing_is_refined_where_all_is_exact(bench: Bench) -> None:
    policy = make_policy("conduit", {})
    for messages, pictures in (([user("hello there")], []), ([user(0, "K?")], PICTURES[:1])):
        _, refiner = refined(ask(bench, messages, policy, pictures), policy, 5)
        assert refiner.refined == 0 and refiner.left == 0
