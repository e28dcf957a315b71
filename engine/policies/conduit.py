"""CONDUIT (arXiv 2609.05821): query attention x cached value norm x image relevance, one global top-k.

Symbols of the paper and their names here: A_l(t) `mass`, n_l(t) `norms`, s(t) `token_scores`, mu_j the image means,
c_j `image_coefficients`, lambda `image_weight`, Lambda the score layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.errors import UnknownPolicy
from engine.families.base import ModelShape, middle_layers
from engine.policies import options
from engine.policies.base import Probe, ScorePlan, SelectingPolicy, offsets, register, top

MEAN_FLOOR = 1e-12
VALUE_MODES = ("flat", "per_head", "wo", "none")
SCORE_LAYERS = ("default", "all", "middle", "last_quarter")
QUERY_SPANS = ("default", "user", "tail")
PRESETS = ("ours", "paper")
MOST_PER_IMAGE = 1_000_000


@register
@dataclass(frozen=True, slots=True)
class Conduit(SelectingPolicy):
    """image_weight in [0, 1]: 0 ignores which image a token belongs to.
    value_mode: "flat" multiplies the attention by the norm of the cached value over all KV heads, "per_head" joins
    attention and norm head by head, "wo" takes the norm of what the token adds behind the output projection, "none"
    leaves values out.
    score_layers: "default" is the family's choice; "all", "middle" (five), "last_quarter", or a list such as "3,5,8".
    query_span: "user" asks with the last user message and the template's end, "tail" with all text behind the last
    image, "last_<n>" with the last n rows; "default" is the preset's.
    min_per_image: so many tokens of each image are taken first, its best, as far as the budget goes.
    preset: "paper" is the released rule: all layers (five middle ones for a single image), a scoring pass over all text
    at full depth whose KV stays, the trailing text asks, refresh of the chosen tokens and the trailing text only, no
    exact prefix.
    """

    image_weight: float = 1.0
    value_mode: str = "flat"
    score_layers: str = "default"
    query_span: str = "default"
    min_per_image: int = 0
    preset: str = "ours"

    name: ClassVar[str] = "conduit"

    def check(self) -> None:
        options.number(self.name, "image_weight", self.image_weight, 0, 1)
        options.one_of(self.name, "value_mode", self.value_mode, VALUE_MODES)
        options.whole_list(self.name, "score_layers", self.score_layers, SCORE_LAYERS)
        options.counted(self.name, "query_span", self.query_span, QUERY_SPANS, "last_")
        options.whole(self.name, "min_per_image", self.min_per_image, 0, MOST_PER_IMAGE)
        options.one_of(self.name, "preset", self.preset, PRESETS)

    @property
    def keeps_exact(self) -> bool:
        return self.preset == "ours"

    @property
    def refresh_text(self) -> bool:
        return self.preset == "ours"

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        paper = self.preset == "paper"
        if paper and self.score_layers == "default":
            layers = middle_layers(shape.layers) if images == 1 else tuple(range(shape.layers))
        else:
            layers = named_layers(self.name, self.score_layers, shape)
        span = self.query_span
        if span == "default":
            span = "tail" if paper else "user"
        last = options.counted(self.name, "query_span", self.query_span, QUERY_SPANS, "last_")
        return ScorePlan(layers, paper, "tail" if span == "tail" else "user", last, self.value_mode)

    def scores(self, probe: Probe) -> torch.Tensor:
        scores = token_scores(probe, self.value_mode)
        return scores * image_coefficients(scores, probe.image, self.image_weight)[probe.image]

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        weighted = self.scores(probe)
        if self.min_per_image:
            weighted = favour_each_image(weighted, probe.image, self.min_per_image)
        return top(weighted, budget)


def named_layers(policy: str, choice: str, shape: ModelShape) -> tuple[int, ...]:
    """Layers of a `score_layers` option. Raises `UnknownPolicy` where the model has no such layer."""
    explicit = options.whole_list(policy, "score_layers", choice, SCORE_LAYERS)
    if explicit is not None:
        if explicit[-1] >= shape.layers:
            raise UnknownPolicy(
                f"cache.options: {policy}.score_layers is {choice!r}; the model has layers 0 to {shape.layers - 1}"
            )
        return explicit
    if choice == "all":
        return tuple(range(shape.layers))
    if choice == "middle":
        return middle_layers(shape.layers)
    if choice == "last_quarter":
        return tuple(range(shape.layers - max(1, shape.layers // 4), shape.layers))
    return shape.score_layers


def token_scores(probe: Probe, value_mode: str) -> torch.Tensor:
    """Mean over the score layers of mass x norm, the product formed layer by layer: [candidates]."""
    if value_mode == "none":
        return probe.mass.mean(0)
    return (probe.mass * probe.norms if value_mode == "flat" else probe.contribution).mean(0)


def image_coefficients(scores: torch.Tensor, image: torch.Tensor, weight: float) -> torch.Tensor:
    """c_j = (1 - weight) + weight x (mean score of image j) / (mean of those means): [images].

    Means over tokens, not sums, so that a large image does not win by its size; images without candidates have no say.
    """
    images = int(image.max()) + 1
    counts = torch.bincount(image, minlength=images)
    sums = torch.zeros(images, dtype=scores.dtype, device=scores.device).index_add_(
        0, image, scores.clamp(min=0)
    )
    means = sums / counts.clamp(min=1)
    overall = means[counts > 0].mean().clamp(min=MEAN_FLOOR)
    return (1 - weight) + weight * means / overall


def damped(scores: torch.Tensor, image: torch.Tensor, damping: float) -> torch.Tensor:
    """Scores divided by the coefficients that CONDUIT would multiply with: images that score high are held back."""
    coefficients = image_coefficients(scores, image, damping)
    # An image that scores nothing keeps its zeros, whatever the damping.
    return scores / coefficients.clamp(min=torch.finfo(scores.dtype).tiny)[image]


def favour_each_image(scores: torch.Tensor, image: torch.Tensor, tokens: int) -> torch.Tensor:
    """Scores in which the best `tokens` of every image stand before all others, the order otherwise unchanged.

    Ranks replace scores: the best of each image come first (the first ones of all images, then the second ones, ...),
    so that a budget too small for all is spread over the images.
    """
    by_score = torch.sort(scores, descending=True, stable=True).indices
    by_image = by_score[torch.sort(image[by_score], stable=True).indices]
    place = torch.empty_like(image)
    place[by_image] = offsets(image[by_image])
    overall = torch.empty_like(image)
    overall[by_score] = torch.arange(len(scores), device=scores.device)
    first = place < tokens
    rank = torch.where(first, place * len(scores) + overall, (tokens + 1) * len(scores) + overall)
    return -rank
