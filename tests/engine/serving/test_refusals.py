"""Requests that cannot be served are refused before they are accepted; what the server decides for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import ContextLengthExceeded
from engine.messages import (
    CacheOptions,
    Failed,
    Finished,
    ImageInput,
    ImagePart,
    Message,
    Sampling,
    TextPart,
)
from engine.policies.known import make_policy
from engine.serving.prepared import answer_budget
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from engine.settings import Defaults
from tests.engine.asking import Client, ask
from tests.engine.conftest import said


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"messages": (said("system", "x"),), "images": ()}, "invalid_prompt"),
        ({"cache": CacheOptions(policy="best")}, "unknown_policy"),
        ({"cache": CacheOptions(policy="conduit", options={"speed": 11})}, "unknown_policy"),
        ({"cache": CacheOptions(refresh_ratio=1.5)}, "invalid_refresh_ratio"),
        ({"cache": CacheOptions(policy="conduit", options={"score_layers": "0,99"})}, "unknown_policy"),
        ({"sampling": Sampling(logit_bias=((10**6, 1.0),))}, "invalid_sampling"),
        ({"sampling": Sampling(max_tokens=5000)}, "context_length_exceeded"),
    ],
)
def test_bad_requests_fail_before_acceptance_and_disturb_nothing(
    client: Client, changes: dict[str, object], code: str
) -> None:
    (event,) = client.run(replace(ask("bad"), **changes))  # type: ignore[arg-type]
    assert isinstance(event, Failed) and event.code == code and event.message
    assert isinstance(client.run(ask("good"))[-1], Finished)


def test_f22_a_picture_too_narrow_names_its_place_and_its_size(client: Client) -> None:
    narrow = ImageInput(b"n" * 32, 600, 2, bytes(3 * 600 * 2))
    request = replace(ask("narrow"), images=(*ask("narrow").images, narrow))
    parts = tuple(ImagePart(number) for number in range(len(request.images)))
    request = replace(request, messages=(Message("user", (*parts, TextPart("What is it?"))),))
    (event,) = client.run(request)
    assert isinstance(event, Failed)
    assert (event.code, event.image) == ("invalid_image", len(request.images) - 1)
    assert event.message == "it is 600 x 2 pixels; the longer side may be at most 200 times the shorter."


def test_context_length_names_both_counts() -> None:
    assert answer_budget(90, None, 100) == 10
    with pytest.raises(
        ContextLengthExceeded, match="90 tokens and 11 are asked for, but the model holds 100"
    ):
        answer_budget(90, 11, 100)
    with pytest.raises(ContextLengthExceeded):
        answer_budget(100, None, 100)


def test_a_request_changes_options_of_the_default_policy_one_by_one(runtime: Runtime) -> None:
    paper = replace(runtime, defaults=Defaults("conduit", 0.1, {"preset": "paper"}))
    changed = paper.choose(CacheOptions(options={"image_weight": 0.5})).policy
    assert changed == make_policy("conduit", {"preset": "paper", "image_weight": 0.5})
    assert paper.choose(CacheOptions(policy="conduit")).policy == make_policy("conduit", {})


def test_a_request_s_own_options_win_over_the_server_s(runtime: Runtime) -> None:
    paper = replace(runtime, defaults=Defaults("conduit", 0.1, {"preset": "paper", "image_weight": 0.2}))
    ours = paper.choose(CacheOptions(options={"preset": "ours"})).policy
    assert ours == make_policy("conduit", {"preset": "ours", "image_weight": 0.2})
    assert paper.choose(CacheOptions(refresh_ratio=0.3)).ratio == 0.3
    assert paper.choose(CacheOptions()).ratio == 0.1


def test_refused_models_answer_by_full_prefill(runtime: Runtime) -> None:
    worker = Worker(replace(runtime, refused="a test"))
    worker.start()
    _, end = Client(worker).answer(ask("r"))
    assert end.report.policy == "full" and "a test" in (end.report.fallback or "")
    status = worker.status()
    assert status.ready and status.degraded == ("reuse is refused, all is computed: a test",)
    worker.stop(0)
