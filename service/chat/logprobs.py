"""Log probabilities as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.messages import TokenLogprob


def logprob_bodies(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Tokens with those that were likely at their place."""
    return [
        {**_token_body(token.token, token.logprob), "top_logprobs": [_token_body(*top) for top in token.top]}
        for token in tokens
    ]


def _token_body(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
