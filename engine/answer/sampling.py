"""Logits -> token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.answer.constraint import Follower
from engine.errors import InvalidSampling, NotFinite
from engine.messages import Sampling

MAX_BIASES = 1024
# As OpenAI's API has it.
LEAST_LOGPROB = -9999.0


def are_sound(logits: torch.Tensor) -> bool:
    """Whether logits [vocab] name a most likely token: no NaN, no positive infinity, and not all of them negative
    infinity (which some are where a model forbids a token)."""
    return math.isfinite(float(logits.max()))  # NaN wins every comparison of `max`


def check_sampling(sampling: Sampling, vocab: int) -> None:
    """Raises `InvalidSampling` for what cannot be drawn from `vocab` tokens."""
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise InvalidSampling(f"max_tokens: {sampling.max_tokens} is less than 1")
    if len(sampling.logit_bias) > MAX_BIASES:
        raise InvalidSampling(
            f"logit_bias: {len(sampling.logit_bias)} tokens, at most {MAX_BIASES} are allowed"
        )
    named = {
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "stop_token_ids": sampling.stop_tokens,
    }
    for option, tokens in named.items():
        for token in tokens:
            if not 0 <= token < vocab:
                raise InvalidSampling(f"{option}: there is no token {token}; the model has {vocab}")


class Sampler:
    """Draws the tokens of one request. The same seed gives the same tokens for the same logits; without one, every
    request draws anew."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        vocab: int,
        follower: Follower | None = None,
        number: int = 0,
        ends: Sequence[int] = (),
    ) -> None:
        """`follower` keeps to the form that the answer must have, `number` is which of the request's answers it is, and
        `ends` are the tokens that end it."""
        self._sampling = sampling
        self._follower = follower
        self._used = _Used(prompt, vocab) if _has_penalty(sampling) else None
        self._bias = torch.zeros(vocab) if sampling.logit_bias else None
        for token, bias in sampling.logit_bias:
            self._bias[token] += bias  # type: ignore[index]
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((sampling.seed + number) % 2**63)
        self._ends = torch.as_tensor(ends, dtype=torch.long)
        self._left = sampling.min_tokens

    def draw(self, logits: torch.Tensor) -> int:
        """`logits` float32 [vocab] -> token id. Raises `NotFinite` where they say nothing."""
        logits = logits.cpu()
        if not are_sound(logits):
            raise NotFinite("The model's numbers are not finite: it cannot answer this with its dtype.")
        logits = self._adjust(logits)
        sampling = self._sampling
        if sampling.temperature == 0:
            token = int(logits.argmax())
        else:
            # The largest logit becomes 0 first, so that no temperature, however small, makes infinities of them.
            probabilities = torch.softmax((logits.double() - logits.max()) / sampling.temperature, dim=-1)
            if sampling.top_k or sampling.top_p < 1 or sampling.min_p:
                probabilities = keep_likely(probabilities, sampling.top_k, sampling.top_p, sampling.min_p)
            token = int(torch.multinomial(probabilities, 1, generator=self._generator))
        self._left -= 1
        if self._used is not None:
            self._used.add(token)
        if self._follower is not None:
            self._follower.take(token)
        return token

    def _adjust(self, logits: torch.Tensor) -> torch.Tensor:
        """Bias, penalties, what the answer's form allows and its least length. Returns `logits` itself where there are
        none."""
        if self._bias is not None:
            logits = logits + self._bias
        if self._used is not None:
            logits = _penalised(logits, self._used, self._sampling)
        if self._follower is not None:
            logits = self._follower.allow(logits)
        return _going_on(logits, self._ends) if self._left > 0 else logits


def _going_on(logits: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Without the tokens that end an answer, where its form leaves others."""
    others = logits.index_fill(0, ends, float("-inf"))
    return others if are_sound(others) else logits


class _Used:
    """Tokens that penalties are for: how often each stands in the answer, and whether in prompt or answer at all.
    Kept only where there is a penalty: it costs as much as drawing a token."""

    def __init__(self, prompt: Sequence[int], vocab: int) -> None:
        self.counts = torch.zeros(vocab)
        self.seen = torch.zeros(vocab, dtype=torch.bool)
        self.seen[torch.as_tensor(prompt, dtype=torch.long)] = True

    def add(self, token: int) -> None:
        self.counts[token] += 1
        self.seen[token] = True


def _has_penalty(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)


def _penalised(logits: torch.Tensor, used: _Used, sampling: Sampling) -> torch.Tensor:
    if sampling.repetition_penalty != 1:
        penalty = sampling.repetition_penalty
        lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(used.seen, lowered, logits)
    presence = sampling.presence_penalty * (used.counts > 0)
    return logits - presence - sampling.frequency_penalty * used.counts


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
    """Natural log probability of `token`, and the `count` most likely (token id, log probability), of raw logits. What
    is impossible has `LEAST_LOGPROB`: JSON knows no infinity."""
    logprobs = torch.log_softmax(logits.float(), dim=-1).clamp(min=LEAST_LOGPROB)
    top = logprobs.topk(count) if count else None
    listed = [] if top is None else list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return float(logprobs[token]), listed
