"""The shadow check: in idle time, some answered requests run again by full prefill, to see what reuse cost."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator

import torch

from engine.answer.sampling import LEAST_LOGPROB, are_sound
from engine.figures import ShadowStats
from engine.passes.forward import Work
from engine.passes.refresh import Prefill, slots_needed
from engine.serving.prepared import Prepared, picture
from engine.serving.runtime import Runtime

log = logging.getLogger(__name__)

# Requests kept for checking, and their decoded images; while the worker is busy the oldest make room.
KEPT = 8
MOST_PIXEL_BYTES = 128 << 20


class Shadow:
    """Checks the given share of requests, a piece at a time, so that live requests wait for one piece at most."""

    def __init__(self, runtime: Runtime, share: float) -> None:
        self._runtime = runtime
        self._share = share
        self._offered: deque[tuple[Prepared, torch.Tensor]] = deque(maxlen=KEPT)
        self._pieces: Iterator[None] | None = None
        self._draws = random.Random(0)
        self.stats = ShadowStats()

    def wants(self, prepared: Prepared) -> bool:
        """Whether this request is to be checked; its images must then be kept until it is."""
        return prepared.choice.policy.uses_store and self._draws.random() < self._share

    def offer(self, prepared: Prepared, logits: torch.Tensor) -> None:
        """An answered request and the logits [vocab] of its first token."""
        self._offered.append((prepared, logits))
        while self._pixel_bytes() > MOST_PIXEL_BYTES:
            self._offered.popleft()

    def _pixel_bytes(self) -> int:
        return sum(len(image.pixels) for prepared, _ in self._offered for image in prepared.request.images)

    @property
    def idle(self) -> bool:
        """Nothing to check."""
        return self._pieces is None and not self._offered

    def step(self) -> None:
        """Do one piece. A check that fails is logged and dropped: it must never disturb the service."""
        if self._pieces is None:
            self._pieces = self._check(*self._offered.popleft())
        try:
            next(self._pieces)
        except StopIteration:
            self._pieces = None
        except Exception:
            log.exception("a shadow check failed")
            self._pieces = None

    def _check(self, prepared: Prepared, reused: torch.Tensor) -> Iterator[None]:
        runtime, layout = self._runtime, prepared.layout
        features = []
        for image in prepared.request.images:
            features.append(runtime.family.encode(picture(image)))
            yield
        kv = runtime.pool.take(slots_needed(layout))
        try:
            by_span = [features[span.image] for span in layout.spans]
            full = Prefill(runtime.family, kv, layout, by_span, Work()).full().logits
        finally:
            runtime.pool.give_back(kv)
        if are_sound(full):  # a sum that is once not finite says nothing any more
            self.stats = add_check(self.stats, full, reused)
        else:
            log.error("a shadow check was dropped: full prefill gave numbers that are not finite")


def add_check(stats: ShadowStats, full: torch.Tensor, reused: torch.Tensor) -> ShadowStats:
    """Count one pair of first-token logits [vocab]."""
    exact, approximate = _log_probabilities(full), _log_probabilities(reused)
    divergence = float((exact.exp() * (exact - approximate)).sum().clamp(min=0))
    agrees = bool(full.argmax() == reused.argmax())
    return ShadowStats(stats.checked + 1, stats.agreed + agrees, stats.kl_sum + divergence)


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Finite ones: tokens that a model forbids count as nearly impossible."""
    return torch.log_softmax(logits.float(), -1).clamp(min=LEAST_LOGPROB)
