"""Questions about a model's tokens, answered beside its queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.errors import InvalidPrompt
from engine.messages import GenerateRequest
from engine.reports import Tokenized
from engine.serving.prepared import prepare
from engine.serving.runtime import Runtime


def token_calls(runtime: Runtime) -> Mapping[str, Callable[..., Any]]:
    """The worker's end of `engine.client.Tokens`, by name."""

    def tokenize(request: GenerateRequest) -> Tokenized:
        layout = prepare(runtime, request, time.monotonic()).layout
        return Tokenized(tuple(layout.ids.tolist()), tuple(span.tokens for span in layout.spans))

    def detokenize(ids: Sequence[int]) -> str:
        vocab = runtime.family.shape.vocab
        for token in ids:
            if not 0 <= token < vocab:
                raise InvalidPrompt(f"tokens: there is no token {token}; the model has {vocab}")
        text: str = runtime.prompt.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    return {"tokenize": tokenize, "detokenize": detokenize}
