"""What a refresh policy is: it says what it wants to know, and chooses visual tokens from what was found out.

Policies are arithmetic on named probes. What they ask for is measured by `engine.passes.probe` and
`engine.passes.layerwise`. Whatever the rule, r = 0 is plain reuse and r = 1 computes every visual token: neither end
asks the policy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch

from engine.errors import InvalidRefreshRatio, UnknownPolicy
from engine.families.base import ModelShape
from engine.policies import options
from engine.policies.corrections import CORRECTIONS

EMPTY = torch.empty(0)
# Keeps a shortlist of a tiny budget from being tiny.
SHORTLIST_EXTRA = 64


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """What the scoring pass must find out.

    layers: whose attention is recorded. all_text: run every text row at full depth and leave its KV in the prompt
    (the paper's stage 1); else only the query rows run, up to the last of `layers`, and leave nothing.
    span: whose attention counts, "user" (last user message and template end) or "tail" (all text behind the last
    image). last: only that many rows at the end of the span (None: all). value_mode: "per_head" and "wo" ask for
    `Probe.contribution`. shortlist: the contribution of the best `shortlist` x budget + `SHORTLIST_EXTRA` candidates by
    mass x norm is enough, the others' is zero (0: all are wanted); `damping` holds back images that score high when the
    list is drawn up. deviation: ask for `Probe.deviation`.
    """

    layers: tuple[int, ...]
    all_text: bool = False
    span: str = "user"
    last: int | None = None
    value_mode: str = "flat"
    shortlist: int = 0
    damping: float = 0.0
    deviation: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found out about the candidates (visual tokens in prompt order). Empty is what the plan did not ask for.

    mass: mean attention of the query rows over all heads, [score layers, candidates].
    norms: L2 norm of the cached values over all KV heads, [score layers, candidates].
    image: which image a candidate belongs to, 0 .. images - 1, [candidates].
    contribution: mass and value norm joined head by head, [score layers, candidates] (see `engine.passes.score`).
    deviation: L2 distance of a candidate's key at layer 1 from the stored one, [candidates]. Layer 1 is the first to
    see context, and this is its exact value: layer 0's keys and values hold none.
    ratio: the refresh ratio that the budget follows from.
    """

    mass: torch.Tensor
    norms: torch.Tensor
    image: torch.Tensor
    contribution: torch.Tensor = EMPTY
    deviation: torch.Tensor = EMPTY
    ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerProbe:
    """One layer of a pass, for the visual tokens that it still computes.

    new_keys, old_keys, new_values, old_values: [kv_heads, active, head_dim], keys rotated to the prompt's positions.
    mass: mean attention that a token gets from all rows of the pass and all heads, [active] (empty unless wanted).
    """

    new_keys: torch.Tensor
    old_keys: torch.Tensor
    new_values: torch.Tensor
    old_values: torch.Tensor
    mass: torch.Tensor = EMPTY


class Policy:
    """A way to choose. Options are the fields of a frozen dataclass; `name` is what requests say.

    fixed_ratio: the share that this policy refreshes whatever is asked for (None: what is asked for). uses_store False
    means full prefill that neither reads nor writes entries.
    """

    __slots__ = ()

    name: ClassVar[str]
    fixed_ratio: ClassVar[float | None] = None
    uses_store: ClassVar[bool] = True

    @property
    def keeps_exact(self) -> bool:
        """Whether an image behind the canonical prefix is restored as it is and is no candidate."""
        return True

    @property
    def refresh_text(self) -> bool:
        """Compute every text row against refreshed KV (else only the run behind the last image, as the paper does)."""
        return True

    @property
    def question(self) -> str | None:
        """Score with this question in the place of the user's (None: the user's)."""
        return None


@dataclass(frozen=True, slots=True)
class SelectingPolicy(Policy):
    """Chooses one set of tokens, which is then computed at every layer.

    correction: what is done to the tokens that were not chosen, by name: "none", "ridge", which moves them by what
    their image's chosen tokens have moved by, the more the more alike their keys are, or "shift", which moves all of an
    image by the shrunk mean (`engine.policies.corrections`).
    """

    correction: str = field(default="none", kw_only=True)

    def __post_init__(self) -> None:
        options.one_of(self.name, "correction", self.correction, tuple(CORRECTIONS))
        self.check()

    def check(self) -> None:
        """Raises `UnknownPolicy` where a value of the policy's own options is none."""

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        """None where the choice needs no scores."""
        return None

    def scores(self, probe: Probe) -> torch.Tensor:
        """What the choice goes by, the larger the better: [candidates]; empty where no score decides."""
        return EMPTY

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        """Indices of the chosen candidates, ascending; `budget` of them unless the policy's options say otherwise.
        With no plan, only `probe.image` and `probe.ratio` are filled."""
        raise NotImplementedError


class LayerwisePolicy(Policy):
    """Computes many tokens at the first layers and ever fewer behind. A token that drops out keeps what was computed
    in the layers already done and what was stored in the others."""

    __slots__ = ()

    wants_mass: ClassVar[bool] = False

    def counts(self, ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
        """Visual tokens computed at each layer, never growing."""
        raise NotImplementedError

    def importance(self, probe: LayerProbe) -> torch.Tensor:
        """What decides who stays, the larger the better: [active]."""
        raise NotImplementedError


AnyPolicy = SelectingPolicy | LayerwisePolicy
Kind = TypeVar("Kind", bound=type[AnyPolicy])
POLICIES: dict[str, type[AnyPolicy]] = {}


def register(policy: Kind) -> Kind:
    if policy.name in POLICIES:
        raise ValueError(f"two refresh policies are called {policy.name!r}")
    POLICIES[policy.name] = policy
    return policy


def make_policy(name: str, options: Mapping[str, object]) -> AnyPolicy:
    """The policy of that name. Raises `UnknownPolicy` for an unknown name, option or option value."""
    if name not in POLICIES:
        raise UnknownPolicy(f"cache.policy: no policy {name!r}; known are {', '.join(sorted(POLICIES))}")
    kind = POLICIES[name]
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            raise UnknownPolicy(
                f"cache.options: policy {name!r} has no option {option!r}; known are {listed}"
            )
    return kind(**options)  # type: ignore[arg-type]


def budget(ratio: float, candidates: int) -> int:
    """ceil(ratio x candidates), safe against the last bit of the product (0.07 x 100 is 7.000000000000001)."""
    if not 0.0 <= ratio <= 1.0:
        raise InvalidRefreshRatio(f"cache.refresh_ratio: {ratio} is not between 0 and 1")
    return min(candidates, math.ceil(round(ratio * candidates, 9)))


def top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest scores, ascending; of equal scores the lower index wins."""
    order = torch.sort(scores, descending=True, stable=True).indices
    return order[:count].sort().values


def offsets(image: torch.Tensor) -> torch.Tensor:
    """Place of each candidate within its image, 0 first: [candidates]."""
    counts = torch.bincount(image)
    starts = counts.cumsum(0) - counts
    return torch.arange(len(image), device=image.device) - starts[image]
