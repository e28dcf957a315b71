"""Logits -> token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.messages import Sampling


class Sampler:
    """Draws the tokens of one request. The same seed gives the same tokens for the same logits; without one, every
    request draws anew."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocab: int) -> None:
        self._sampling = sampling
        self._prompt = torch.as_tensor(sorted(set(prompt)), dtype=torch.long)
        self._counts = torch.zeros(vocab)
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed % 2**63)

    def draw(self, logits: torch.Tensor) -> int:
        """`logits` float32 [vocab] -> token id."""
        logits = self._adjust(logits.cpu())
        sampling = self._sampling
        if sampling.temperature == 0:
            token = int(logits.argmax())
        else:
            probabilities = torch.softmax(logits.double() / sampling.temperature, dim=-1)
            kept = keep_likely(probabilities, sampling.top_k, sampling.top_p, sampling.min_p)
            token = int(torch.multinomial(kept, 1, generator=self._generator))
        self._counts[token] += 1
        return token

    def _adjust(self, logits: torch.Tensor) -> torch.Tensor:
        """Bias and penalties. Returns `logits` itself where there are none."""
        sampling = self._sampling
        if sampling.logit_bias:
            ids, biases = zip(*sampling.logit_bias, strict=True)
            logits = logits.index_add(0, torch.tensor(ids), torch.tensor(biases, dtype=logits.dtype))
        if sampling.repetition_penalty != 1:
            in_answer = self._counts.nonzero()[:, 0]
            seen = torch.as_tensor(sorted({*self._prompt.tolist(), *in_answer.tolist()}))
            chosen = logits[seen]
            penalty = sampling.repetition_penalty
            logits = logits.index_copy(0, seen, torch.where(chosen > 0, chosen / penalty, chosen * penalty))
        if sampling.presence_penalty or sampling.frequency_penalty:
            presence = sampling.presence_penalty * (self._counts > 0)
            logits = logits - presence - sampling.frequency_penalty * self._counts
        return logits


def keep_likely(probabilities: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Zero what the filters drop; the rest, at least one token, renormalised.

    `top_k` most probable tokens; of those the smallest set whose mass reaches `top_p` of theirs; of those, tokens at
    least `min_p` times as probable as the most probable one.
    """
    ordered, order = probabilities.sort(descending=True, stable=True)
    if top_k:
        ordered[top_k:] = 0
    before = ordered.cumsum(0) - ordered
    kept = (before < top_p * ordered.sum()) & (ordered >= min_p * ordered[0])
    kept[0] = True
    ordered = torch.where(kept, ordered, 0.0)
    return torch.zeros_like(probabilities).index_copy(0, order, ordered / ordered.sum())


def likely_logprobs(logits: torch.Tensor, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
    """Natural log probability of `token`, and the `count` most likely (token id, log probability), of raw logits."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    top = logprobs.topk(count) if count else None
    listed = [] if top is None else list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return float(logprobs[token]), listed
