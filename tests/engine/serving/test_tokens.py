"""Questions about tokens are answered as a request would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import ContextLengthExceeded, InvalidPrompt, InvalidSampling
from engine.messages import Accepted, Sampling
from engine.reports import Tokenized
from engine.serving.runtime import Runtime
from engine.serving.tokens import token_calls
from tests.engine.asking import Client, ask
from tests.engine.conftest import user

Calls = Mapping[str, Callable[..., Any]]


@pytest.fixture
def calls(runtime: Runtime) -> Calls:
    return token_calls(runtime)


def test_a_prompt_has_the_tokens_that_it_would_be_answered_from(client: Client, calls: Calls) -> None:
    accepted = client.run(ask("a"))[0]
    tokenized: Tokenized = calls["tokenize"](ask("b"))
    assert isinstance(accepted, Accepted)
    assert len(tokenized.ids) == accepted.prompt_tokens
    assert sum(tokenized.image_tokens) == accepted.image_tokens == 49
    assert len(tokenized.image_tokens) == 2


def test_of_images_only_the_size_counts(calls: Calls) -> None:
    request = ask("a")
    sizes = tuple(replace(image, pixels=b"") for image in request.images)
    assert calls["tokenize"](replace(request, images=sizes)) == calls["tokenize"](request)


def test_an_image_given_twice_takes_its_tokens_twice(calls: Calls) -> None:
    once = calls["tokenize"](ask("a", (user(0, "?"),), images=1))
    same = ask("a", (user(0, 1, "?"),), images=2)
    twice = calls["tokenize"](replace(same, images=same.images[:1] * 2))
    assert twice.image_tokens == once.image_tokens * 2


def test_what_would_be_refused_is_refused(calls: Calls) -> None:
    with pytest.raises(InvalidSampling):
        calls["tokenize"](ask("a", sampling=Sampling(logit_bias=((10**6, 1.0),))))
    with pytest.raises(ContextLengthExceeded):
        calls["tokenize"](ask("a", (user(0, 1, "word " * 40_000),)))


def test_ids_are_read_back(calls: Calls) -> None:
    ids = calls["tokenize"](ask("a", (user("What is K?"),), images=0)).ids
    text = calls["detokenize"](ids)
    assert "What is K?" in text and text.startswith("<|im_start|>")


@pytest.mark.parametrize("token", [-1, 10**6])
def test_what_is_no_token_is_named(calls: Calls, token: int) -> None:
    with pytest.raises(InvalidPrompt, match=f"there is no token {token}"):
        calls["detokenize"]([1, token])
