"""One prompt, many policies: what they share is computed once.

Entries are compiled once per image, full prefill runs once per prompt, one scoring pass serves all rules and ratios
that ask for the same scores, and refresh passes of one size run together. The tests compare each with a request of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.families.base import Family
from engine.passes.forward import Work
from engine.passes.kv import KVPool
from engine.passes.probe import Prober
from engine.passes.refresh import Prefill
from engine.policies.base import LayerwisePolicy, Policy, ScorePlan, SelectingPolicy
from engine.policies.known import make_policy
from engine.prompt.layout import Ints, PromptLayout, Query
from eval.batched import refresh_all
from store.records.entry import ImageKV

# Any policy that keeps exact images, for restoring what all of them start from.
REFERENCE = make_policy("reuse", {})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A laid-out prompt. `features` and `entries` one per span, in prompt order; `foreign` are the rows of another
    question, for controls that score with it."""

    layout: PromptLayout
    features: tuple[torch.Tensor, ...]
    entries: tuple[ImageKV, ...]
    foreign: Query

    @property
    def slots(self) -> int:
        """Slots that any run on this prompt may write to: scratch slots of queries stand behind the prompt."""
        return self.layout.length + max(len(self.foreign.ids), len(self.layout.query.ids))


class SharedProber(Prober):
    """Remembers its scoring passes. The paper's stage 1 is not remembered: it leaves KV that the prefill needs."""

    def share(self) -> SharedProber:
        self._found: dict[tuple[object, ...], torch.Tensor] = {}
        return self

    def _score_with_query(self, plan: ScorePlan) -> torch.Tensor:
        key = (plan.layers, plan.span, plan.last)
        if key not in self._found:
            self._found[key] = super()._score_with_query(plan)
        return self._found[key]


class Trial:
    """Full prefill of one prompt, and any policy at any ratio on the same prompt. Call `close` at the end."""

    def __init__(self, family: Family, pool: KVPool, prompt: Prompt) -> None:
        self._family, self._pool, self.prompt = family, pool, prompt
        self.kv = pool.take(prompt.slots)
        self.own = self._prefill(prompt.layout)
        self._other: Prefill | None = None
        self._shrunk: dict[tuple[Policy, tuple[int, ...]], torch.Tensor] = {}
        self.full = self.own.full().logits

    def run(self, policy: Policy, ratio: float) -> torch.Tensor:
        """The first token's logits, as a request with this policy gets them."""
        return self._asked(policy).reuse(self.prompt.entries, policy, ratio).logits

    def run_all(self, runs: Sequence[tuple[Policy, float]]) -> list[torch.Tensor]:
        """As `run` for each, with shared work: rules that choose the same tokens share a pass, passes of one size run
        together, and layer-wise rules with the same counts are one."""
        found: dict[int, torch.Tensor] = {}
        chosen: dict[int, dict[bytes, tuple[Ints, list[int]]]] = {}
        # Scoring passes and batched passes leave visual KV as it was restored; the runs behind them do not.
        candidates = self.own.restore(self.prompt.entries, REFERENCE, 0.5)
        for number, (policy, ratio) in enumerate(runs):
            if (
                isinstance(policy, SelectingPolicy)
                and policy.keeps_exact
                and policy.refresh_text
                and policy.correction == "none"
                and ratio < 1
            ):
                slots = self._asked(policy).choose(candidates, policy, ratio)
                _, numbers = chosen.setdefault(len(slots), {}).setdefault(slots.tobytes(), (slots, []))
                numbers.append(number)
        for same_size in chosen.values():
            logits = refresh_all(self.own, [slots for slots, _ in same_size.values()])
            for (_, numbers), row in zip(same_size.values(), logits, strict=True):
                found |= dict.fromkeys(numbers, row)
        for number, (policy, ratio) in enumerate(runs):
            if number not in found:
                layerwise = isinstance(policy, LayerwisePolicy) and ratio < 1
                found[number] = self._shrink(policy, ratio) if layerwise else self.run(policy, ratio)
        return [found[number] for number in range(len(runs))]

    def chosen(self, policy: Policy, ratio: float) -> Ints:
        """The slots that a policy refreshes, ascending."""
        assert isinstance(policy, SelectingPolicy)
        candidates = self.own.restore(self.prompt.entries, policy, ratio)
        return self._asked(policy).choose(candidates, policy, ratio)

    def close(self) -> None:
        self._pool.give_back(self.kv)

    def _shrink(self, policy: Policy, ratio: float) -> torch.Tensor:
        assert isinstance(policy, LayerwisePolicy)
        tokens = len(self.prompt.layout.candidates())
        key = (policy, policy.counts(ratio, tokens, self._family.shape.layers))
        if key not in self._shrunk:
            self._shrunk[key] = self.run(policy, ratio)
        return self._shrunk[key]

    def _asked(self, policy: Policy) -> Prefill:
        """The prefill whose query asks: the prompt's own, or the foreign one."""
        if policy.question is None:
            return self.own
        if self._other is None:
            self._other = self._prefill(replace(self.prompt.layout, query=self.prompt.foreign))
        return self._other

    def _prefill(self, layout: PromptLayout) -> Prefill:
        prefill = Prefill(self._family, self.kv, layout, self.prompt.features, Work())
        prefill.prober = SharedProber(self._family, self.kv, prefill.prompt_rows, prefill.work).share()
        return prefill


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy with its options, under the name that results say."""

    name: str
    policy: str
    options: tuple[tuple[str, object], ...] = ()
    ratios: tuple[float, ...] | None = None

    def make(self, prompt: int) -> Policy:
        """The policy for prompt number `prompt`; the random control draws anew for each."""
        options = dict(self.options)
        if self.policy == "random":
            options["seed"] = prompt
        return make_policy(self.policy, options)


@dataclass(frozen=True, slots=True)
class Idea(Arm):
    """An arm whose rule requests cannot ask for."""

    rule: Policy | None = None

    def make(self, prompt: int) -> Policy:
        assert self.rule is not None
        return self.rule


def kl_to_full(full: torch.Tensor, logits: torch.Tensor) -> float:
    """KL(full || logits) of the first token's distribution, in nats."""
    wanted = full.log_softmax(-1)
    return float((wanted.exp() * (wanted - logits.log_softmax(-1))).sum().clamp(min=0))
