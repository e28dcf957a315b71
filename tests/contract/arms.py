"""All refresh policies there are, and requests that ask one of them. A new policy joins by existing.

`VARIANTS` adds option settings that change what a policy does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from engine.messages import Message
from engine.passes.forward import Work
from engine.passes.probe import Candidates
from engine.passes.refresh import Prefill, Prefilled, slots_needed
from engine.policies.base import LayerProbe, LayerwisePolicy, Policy, SelectingPolicy
from engine.policies.corrections import CORRECTIONS
from engine.policies.known import POLICIES, make_policy
from engine.prompt.layout import Ints, PromptLayout
from store.records.entry import ImageKV
from tests.engine.conftest import PICTURES, SHIFTED, Bench, said, user

Options = Mapping[str, object]
Arm = tuple[str, Options]

PAPER: Options = {"preset": "paper"}
RELEASED: Options = {"variant": "paper"}
VARIANTS: dict[str, tuple[Options, ...]] = {
    "conduit": (
        PAPER,
        {"value_mode": "per_head"},
        {"value_mode": "wo"},
        {"score_layers": "0,2", "query_span": "last_2"},
        {"min_per_image": 2, "query_span": "tail"},
    ),
    "cacheblend": ({"variant": "original"}, {"variant": "original", "measure": "keys"}, RELEASED),
    "first_k": ({"spread": "share"},),
    "kvshare": (RELEASED,),
    "mpic_flat": (RELEASED,),
    "prophetkv": (RELEASED,),
    "vlcache": (RELEASED,),
}
# Every correction of every selecting policy that leaves something to correct, and of the paper's text passes.
CORRECTED: list[Arm] = [
    (name, {**options, "correction": correction})
    for correction in CORRECTIONS
    for name, options in [*((name, {}) for name in sorted(POLICIES)), ("conduit", PAPER)]
    if correction != "none"
    and issubclass(POLICIES[name], SelectingPolicy)
    and POLICIES[name].fixed_ratio is None
]
ARMS: list[Arm] = [
    *((name, {}) for name in sorted(POLICIES)),
    *((name, options) for name, variants in VARIANTS.items() for options in variants),
    *CORRECTED,
]
WITH_RATIO = [(n, o) for n, o in ARMS if POLICIES[n].fixed_ratio is None]
# MPIC-k and LegoLink-k refresh a fixed number of tokens, whatever the ratio between its ends is; VLCache's code rounds
# up image by image.
BY_RATIO = [
    (n, o)
    for n, o in WITH_RATIO
    if not getattr(make_policy(n, o), "tokens", 0) and (n, o) != ("vlcache", RELEASED)
]
LAYERWISE = [(n, o) for n, o in BY_RATIO if issubclass(POLICIES[n], LayerwisePolicy)]
SELECTING = [(n, o) for n, o in BY_RATIO if issubclass(POLICIES[n], SelectingPolicy)]
ONE_IMAGE = [said("system", "Read them all, slowly."), user(0, "What is K?")]


def named(arms: list[Arm]) -> pytest.MarkDecorator:
    ids = [name + "".join(f",{k}={v}" for k, v in options.items()) for name, options in arms]
    return pytest.mark.parametrize(("name", "options"), arms, ids=ids)


@dataclass
class Asked:
    """One prompt with its entries; `run` is a request."""

    bench: Bench
    layout: PromptLayout
    features: list[torch.Tensor]
    entries: list[ImageKV]

    def prefill(self) -> Prefill:
        size = slots_needed(self.layout)
        return Prefill(self.bench.family, self.bench.pool._allocate(size), self.layout, self.features, Work())

    def restored(self, policy: Policy, ratio: float) -> tuple[Prefill, Candidates]:
        prefill = self.prefill()
        return prefill, prefill.restore(self.entries, policy, ratio)

    def run(self, policy: Policy, ratio: float) -> tuple[Prefill, Prefilled]:
        prefill = self.prefill()
        return prefill, prefill.reuse(self.entries, policy, ratio)

    def error(self, policy: Policy, ratio: float) -> float:
        """Distance of the last row's logits from full prefill."""
        return float((self.run(policy, ratio)[1].logits - self.prefill().full().logits).norm())


def ask(
    bench: Bench, messages: list[Message], policy: Policy, pictures: list[np.ndarray] = PICTURES
) -> Asked:
    shapes = [bench.family.span(p.shape[1], p.shape[0]) for p in pictures]
    layout = bench.prompt.layout(messages, shapes, policy.question)
    entries = [compiled(bench, pictures[span.image]) for span in layout.spans]
    return Asked(bench, layout, [entry.features for entry in entries], entries)


def compiled(bench: Bench, pixels: np.ndarray) -> ImageKV:
    """A picture's entry, compiled once for all tests: requests only read entries (T12)."""
    key = (id(bench), pixels.shape, pixels.tobytes())
    if key not in _COMPILED:
        _COMPILED[key] = bench.entry(pixels)
    return _COMPILED[key]


_COMPILED: dict[tuple[object, ...], ImageKV] = {}


def ask_fully(bench: Bench, policy: Policy) -> Asked:
    """A prompt of which r = 1 leaves no stale row: where only the trailing text is computed anew, text between images
    (the tokens around each of them too) stays as the paper's stage 1 left it, so there is one image."""
    if policy.refresh_text:
        return ask(bench, SHIFTED, policy)
    return ask(bench, ONE_IMAGE, policy, PICTURES[:1])


class Watched(LayerwisePolicy):
    """A layer-wise policy with a record of what it was shown and what it said. Given what one said before, it says
    that again, whatever it is shown."""

    wants_mass: ClassVar[bool] = True

    def __init__(self, policy: LayerwisePolicy, again: list[torch.Tensor] | None = None) -> None:
        self.policy, self.again = policy, again
        self.shown: list[LayerProbe] = []
        self.said: list[torch.Tensor] = []

    def counts(self, ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
        return self.policy.counts(ratio, candidates, layers)

    def importance(self, probe: LayerProbe) -> torch.Tensor:
        says = self.policy.importance(probe) if self.again is None else self.again[len(self.said)]
        self.shown.append(probe)
        self.said.append(says)
        return says

    def active(self, slots: Ints, ratio: float, layers: int) -> list[Ints]:
        """Of the candidates at `slots` those that each layer computes, by what was said: the most important stay, of
        equals the lower."""
        said, left = iter(self.said), slots.tolist()
        kept = []
        for count in self.counts(ratio, len(slots), layers):
            if count < len(left):
                worth = dict(zip(left, next(said).tolist(), strict=True))
                left = sorted(sorted(left, key=lambda slot: (-worth[slot], slot))[:count])
            kept.append(np.asarray(left, dtype=np.int64))
        return kept
