"""One prompt, many policies: what they share is computed once, the rest goes the way of a request.

Entries are compiled once per image, full prefill runs once per prompt, and one scoring pass serves all rules and ratios
that ask for the same scores (`SharedProber`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.families.base import Family
from engine.forward import Work
from engine.kv import KVPool, RequestKV
from engine.layout import ImageSpan, Ints, PromptLayout, Query
from engine.policies.base import LayerwisePolicy, Policy, Probe, ScorePlan
from engine.policies.known import make_policy
from engine.probe import Candidates, Prober
from engine.refresh import Prefill, Prefilled
from store.entry import ImageKV


@dataclass(frozen=True, slots=True)
class Prompt:
    """A laid-out prompt. `features` and `entries` one per span, in prompt order; `foreign` are the rows of another
    question, for controls that score with it."""

    layout: PromptLayout
    features: tuple[torch.Tensor, ...]
    entries: tuple[ImageKV, ...]
    foreign: Query


class SharedProber(Prober):
    """Remembers its probes. The paper's stage 1 is not remembered: it leaves KV behind that the prefill needs."""

    def share(self) -> SharedProber:
        self._found: dict[tuple[ScorePlan, tuple[ImageSpan, ...], int], Probe] = {}
        return self

    def probe(self, candidates: Candidates, plan: ScorePlan, count: int) -> Probe:
        if plan.all_text:
            return super().probe(candidates, plan, count)
        key = (plan, candidates.spans, count if plan.shortlist else 0)
        if key not in self._found:
            self._found[key] = super().probe(candidates, plan, count)
        return self._found[key]


class SharedPrefill(Prefill):
    """Remembers what a choice leads to: rules that choose the same tokens get the same logits."""

    def share(self) -> SharedPrefill:
        self.prober = SharedProber(self.family, self.kv, self.prompt_rows, self.work).share()
        self._refreshed: dict[tuple[bytes, tuple[ImageSpan, ...]], Prefilled] = {}
        self._shrunk: dict[tuple[Policy, tuple[int, ...]], Prefilled] = {}
        return self

    def refresh(self, candidates: Candidates, chosen: Ints, all_text: bool) -> Prefilled:
        if not all_text:
            return super().refresh(candidates, chosen, all_text)
        key = (chosen.tobytes(), candidates.spans)
        if key not in self._refreshed:
            self._refreshed[key] = super().refresh(candidates, chosen, all_text)
        return self._refreshed[key]

    def shrink(self, candidates: Candidates, policy: LayerwisePolicy, ratio: float) -> Prefilled:
        key = (policy, policy.counts(ratio, len(candidates), self.family.shape.layers))
        if key not in self._shrunk:
            self._shrunk[key] = super().shrink(candidates, policy, ratio)
        return self._shrunk[key]


class Trial:
    """Full prefill of one prompt, and any policy at any ratio on the same prompt. Call `close` at the end."""

    def __init__(self, family: Family, pool: KVPool, prompt: Prompt) -> None:
        self._family, self._pool, self.prompt = family, pool, prompt
        self.kv = pool.take(prompt.layout.length + len(prompt.foreign.ids) + len(prompt.layout.query.ids))
        self.own = self._prefill(prompt.layout)
        self._other: SharedPrefill | None = None
        self.full = self.own.full().logits

    def run(self, policy: Policy, ratio: float) -> Prefilled:
        """The first token's logits, as a request with this policy gets them."""
        prefill = self.own if policy.question is None else self._asked_by_another()
        return prefill.reuse(self.prompt.entries, policy, ratio)

    def full_kv(self) -> RequestKV:
        """KV of a full prefill, apart from the buffer that the runs share."""
        self.own.full()
        return RequestKV(self.kv.keys.clone(), self.kv.values.clone())

    def close(self) -> None:
        self._pool.give_back(self.kv)

    def _asked_by_another(self) -> SharedPrefill:
        if self._other is None:
            layout = self.prompt.layout
            self._other = self._prefill(
                PromptLayout(
                    layout.ids,
                    layout.spans,
                    layout.positions,
                    layout.next_position,
                    self.prompt.foreign,
                    layout.exact,
                )
            )
        return self._other

    def _prefill(self, layout: PromptLayout) -> SharedPrefill:
        return SharedPrefill(self._family, self.kv, layout, self.prompt.features, Work()).share()


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy with its options, under the name that results say."""

    name: str
    policy: str
    options: tuple[tuple[str, object], ...] = ()

    def make(self, prompt: int) -> Policy:
        """The policy for prompt number `prompt`; the random control draws anew for each."""
        options = dict(self.options)
        if self.policy == "random":
            options["seed"] = prompt
        return make_policy(self.policy, options)


def kl_to_full(full: torch.Tensor, logits: torch.Tensor) -> float:
    """KL(full || logits) of the first token's distribution, in nats."""
    wanted = full.log_softmax(-1)
    return float((wanted.exp() * (wanted - logits.log_softmax(-1))).sum().clamp(min=0))


def tokens_computed(found: Prefilled, spans: Sequence[ImageSpan]) -> float:
    """Share of the visual tokens that were computed."""
    return float(np.sum(found.refreshed)) / max(1, sum(span.tokens for span in spans))
