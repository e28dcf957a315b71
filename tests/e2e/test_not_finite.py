"""Fault M5 over HTTP: a model whose numbers are not finite gives one error with a code, and never a literal NaN."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from demo.questions import make_example
from tests.e2e.conftest import Start
from tests.e2e.live import body

VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
}


def test_m5_numbers_that_are_not_finite_are_one_error_over_http(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start()
    example = make_example(np.random.default_rng(5), "single_hop", 1)
    family = live.started.worker.runtime.family
    logits = family.logits
    for variant in VARIANTS.values():
        asked = {**body(example, live.url, {}), **variant}
        with monkeypatch.context() as patch:
            patch.setattr(family, "logits", lambda hidden: logits(hidden) * torch.nan)
            whole = live.api.post("/v1/chat", json=asked)
            assert (whole.status_code, whole.json()["error"]["code"]) == (500, "not_finite")
            streamed = live.api.post("/v1/chat", json={**asked, "stream": True}).text
        events = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data:")]
        assert events[-1] == "[DONE]" and "NaN" not in streamed
        errors = [error for event in events[:-1] if (error := json.loads(event).get("error"))]
        assert [error["code"] for error in errors] == ["not_finite"]
        assert live.api.post("/v1/chat", json=asked).status_code == 200
