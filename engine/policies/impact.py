"""Our own rule: refresh the tokens that write most into the rows that ask, spread over the images.

A cached token reaches the question only through attention: per layer it adds `sum_h a_h W_O^h v_h` to a query row's
residual stream (a_h its attention weight in head h, v_h its value in that head, W_O^h the head's part of the output
projection). The length of that vector is the token's impact. CONDUIT multiplies the mean attention by the norm of all
value heads together, which counts heads that nobody attends with and directions that the projection drops.

CONDUIT then favours the images that score high. Here they are held back: a stale image does not know what stands before
it, so the one that draws the query may be the wrong one, and the budget is better spread until that is known. Both
differences were measured, see docs/policies/impact.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.families.base import ModelShape
from engine.policies import options
from engine.policies.base import Probe, ScorePlan, SelectingPolicy, register, top
from engine.policies.conduit import QUERY_SPANS, SCORE_LAYERS, damped, named_layers

# The exact impact is worked out for so many times the budget; what mass x norm ranks behind that is not chosen.
SHORTLIST = 2


@register
@dataclass(frozen=True, slots=True)
class Impact(SelectingPolicy):
    """image_damping in [0, 1]: a token's impact is divided by (1 - damping) + damping x (mean impact of its image) /
    (mean of those means); 0 ignores which image a token belongs to.
    score_layers: "default", "all", "middle", "last_quarter" or a list such as "3,5,8", as for `conduit`.
    query_span: "user", "tail" or "last_<n>", as for `conduit`; "default" is user."""

    image_damping: float = 0.5
    score_layers: str = "default"
    query_span: str = "default"

    name: ClassVar[str] = "impact"

    def check(self) -> None:
        options.number(self.name, "image_damping", self.image_damping, 0, 1)
        options.whole_list(self.name, "score_layers", self.score_layers, SCORE_LAYERS)
        options.counted(self.name, "query_span", self.query_span, QUERY_SPANS, "last_")

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        layers = named_layers(self.name, self.score_layers, shape)
        last = options.counted(self.name, "query_span", self.query_span, QUERY_SPANS, "last_")
        span = "tail" if self.query_span == "tail" else "user"
        return ScorePlan(
            layers, span=span, last=last, value_mode="wo", shortlist=SHORTLIST, damping=self.image_damping
        )

    def scores(self, probe: Probe) -> torch.Tensor:
        return damped(probe.contribution.mean(0), probe.image, self.image_damping)

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return top(self.scores(probe), budget)
