"""Whether a model would say a given answer word for word, found out in one pass instead of one per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.families.base import Family
from engine.passes.attention import by_order
from engine.passes.forward import Rows, keep
from engine.passes.kv import RequestKV
from engine.passes.refine import Refiner
from engine.passes.rotation import rotate


def would_say(
    family: Family, kv: RequestKV, first: torch.Tensor, slot: int, position: int, answer: Sequence[int]
) -> bool:
    """Greedy decoding gives `answer` (token ids, the end of the turn included) iff each of its tokens is the likeliest
    behind the ones before it. `first` are the logits that prefill left, `slot` and `position` those behind the prompt,
    where `kv` must have room."""
    if int(first.argmax()) != answer[0]:
        return False
    if len(answer) == 1:
        return True
    likeliest = _likeliest(family, kv, slot, position, answer[:-1])
    return likeliest == list(answer[1:])


def would_say_refining(
    family: Family,
    kv: RequestKV,
    first: torch.Tensor,
    slot: int,
    position: int,
    answer: Sequence[int],
    refiner: Refiner,
    count: int,
) -> bool:
    """As `would_say`, token by token: `count` prompt rows are computed anew before each token behind the first."""
    logits = first
    for said, token in enumerate(answer):
        if int(logits.argmax()) != token:
            return False
        if said < len(answer) - 1:
            refiner.step(kv, count)
            logits = _likely(family, kv, slot + said, position + said, [token])[0]
    return True


def _likeliest(family: Family, kv: RequestKV, slot: int, position: int, said: Sequence[int]) -> list[int]:
    """The likeliest token behind each of `said`."""
    found: list[int] = _likely(family, kv, slot, position, said).argmax(-1).tolist()
    return found


def _likely(family: Family, kv: RequestKV, slot: int, position: int, said: Sequence[int]) -> torch.Tensor:
    """Logits [said, vocab] behind each of `said`."""
    places = torch.arange(len(said))
    hidden = family.embed(torch.tensor(said, device=family.device))
    slots = (places + slot).to(family.device)
    rope = family.rope((places + position).expand(3, -1))
    attention = by_order(slots, family.shape.group)
    for layer in range(family.shape.layers):
        projected = family.project(layer, hidden)
        keep(kv, layer, Rows(hidden, slots, rope), projected.keys, projected.values)
        attended = attention(rotate(projected.queries, rope), kv.keys[layer], kv.values[layer])
        hidden = family.finish(layer, hidden, attended)
    return family.logits(hidden)
