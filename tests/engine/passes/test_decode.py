"""One token at a time: room for it, and nobody's token in anybody else's place."""

from __future__ import annotations

import torch

from engine.passes.decode import Decoder, decode_step
from engine.passes.forward import Work
from engine.passes.kv import SLOT_STEP
from tests.engine.conftest import PICTURES, Bench, said, user


def decoder(bench: Bench, slot: int, limit: int) -> Decoder:
    return Decoder(bench.pool, bench.pool.take(slot), slot, slot, limit)


def test_room_is_made_when_the_next_token_does_not_fit_and_not_before(bench: Bench) -> None:
    full = decoder(bench, SLOT_STEP, 4 * SLOT_STEP)
    assert full.kv.capacity == SLOT_STEP
    full.slot -= 1
    full.make_room()
    assert full.kv.capacity == SLOT_STEP
    full.slot += 1
    full.make_room()
    assert full.kv.capacity == 2 * SLOT_STEP


def test_no_more_room_is_made_than_the_request_may_take(bench: Bench) -> None:
    nearly_there = decoder(bench, 4 * SLOT_STEP, 5 * SLOT_STEP)
    nearly_there.make_room()
    assert nearly_there.kv.capacity == 5 * SLOT_STEP


@torch.no_grad()
def test_requests_that_decode_together_decode_as_alone(bench: Bench) -> None:
    """Of different lengths and positions, token by token."""
    conversations = [
        [user(0, "What is K?")],
        [said("system", "Slowly."), user(0, 1, "What is L on the red page?")],
        [user("hello")],
    ]

    def begin() -> tuple[list[Decoder], list[int]]:
        decoders, tokens = [], []
        for messages, images in zip(conversations, (1, 2, 0), strict=True):
            layout = bench.layout(messages, PICTURES[:images])
            prefill, first = bench.full(layout, PICTURES[:images])
            length = layout.length
            decoders.append(Decoder(bench.pool, prefill.kv, length, layout.next_position, length + 9))
            tokens.append(int(first.logits.argmax()))
        return decoders, tokens

    decoders, tokens = begin()
    together: list[torch.Tensor] = []
    for _ in range(4):
        logits = decode_step(bench.family, decoders, tokens, [Work() for _ in decoders])
        tokens = logits.argmax(-1).tolist()
        together.append(logits)
    decoders, tokens = begin()
    for number, (alone, token) in enumerate(zip(decoders, tokens, strict=True)):
        for step in together:
            (logits,) = decode_step(bench.family, [alone], [token], [Work()])
            assert torch.allclose(logits, step[number], atol=1e-4)
            token = int(logits.argmax())
