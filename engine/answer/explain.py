"""Where each visual token of a request is from, and why: the picture of a refresh in numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.chains.held import Mask
from engine.passes.refresh import Prefilled
from engine.passes.witness import Witness
from engine.policies.base import LayerwisePolicy, Policy
from engine.prompt.layout import ImageSpan, PromptLayout
from engine.reports import TOKEN_STATES, Explanation, ImageReport, KvReport

DIGITS = 4
REUSED, COMPILED, REFRESHED, EXACT, CHAINED = range(len(TOKEN_STATES))


def explained(
    report: KvReport,
    layout: PromptLayout,
    policy: Policy,
    prefilled: Prefilled,
    given: Mask,
    witness: Witness,
) -> KvReport:
    """`report` with an `Explanation` of every image. `given` [slots] are the rows that a chain had."""
    by_layer = isinstance(policy, LayerwisePolicy)
    images = tuple(
        replace(image, explained=_explanation(span, image, exact, given, witness, by_layer))
        for span, image, exact in zip(layout.spans, report.images, prefilled.exact, strict=True)
    )
    return replace(report, images=images)


def _explanation(
    span: ImageSpan, image: ImageReport, exact: bool, given: Mask, witness: Witness, by_layer: bool
) -> Explanation:
    slots = span.visual_slots()
    shares, scores = witness.shares[slots], witness.scores[slots]
    stored = EXACT if exact else REUSED if image.outcome == "hit" else COMPILED
    states = np.where(shares > 0, REFRESHED, stored)
    states[given[slots]] = CHAINED
    return Explanation(
        span.shape.grid,
        states.astype(np.uint8).tobytes(),
        _told(_relative(scores)),
        _told(witness.drift[slots]),
        _told(shares) if by_layer else None,
    )


def _relative(scores: np.ndarray) -> np.ndarray:
    """In units of the image's mean: raw attention has places that are hot whatever is asked."""
    mean = scores.mean()
    return scores / mean if mean > 0 else scores


def _told(values: np.ndarray) -> tuple[float | None, ...] | None:
    """None where there is no value at all."""
    found = np.isfinite(values)
    if not found.any():
        return None
    return tuple(
        round(float(value), DIGITS) if there else None for value, there in zip(values, found, strict=True)
    )
