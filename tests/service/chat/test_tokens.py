"""`/v1/tokenize` and `/v1/detokenize`."""

from __future__ import annotations

import httpx
import pytest

from tests.service.asking import RED, ask, refused
from tests.service.conftest import Start
from tests.service.fake_engine import IMAGE_TOKENS, INFO, FakeEngine


def test_a_chat_request_is_counted_and_not_answered(api: httpx.Client, engine: FakeEngine) -> None:
    before = answered(api)
    body = (
        api.post("/v1/tokenize", json={"prompt": "three words here", "images": [RED]})
        .raise_for_status()
        .json()
    )
    assert body == {
        "model": "test-reader",
        "count": 3 + IMAGE_TOKENS,
        "max_model_len": INFO.max_context,
        "tokens": list(range(3 + IMAGE_TOKENS)),
        "image_tokens": [IMAGE_TOKENS],
    }
    assert engine.submitted == 0 and engine.open == 0
    assert answered(api) == before


def answered(api: httpx.Client) -> list[str]:
    return [
        line for line in api.get("/metrics").text.splitlines() if line.startswith("conduit_requests_total{")
    ]


def test_every_option_of_chat_is_understood_and_what_is_wrong_is_refused(api: httpx.Client) -> None:
    api.post("/v1/tokenize", json=ask(RED, max_tokens=5, stream=True, n=2)).raise_for_status()
    refused(api.post("/v1/tokenize", json=ask(RED, n=9)), 400, "invalid_request")
    refused(api.post("/v1/tokenize", json=ask("ftp://x")), 400, "invalid_image_url")
    refused(api.post("/v1/tokenize", json=ask(RED, model="other")), 404, "model_not_found")


def test_tokens_are_read_back(api: httpx.Client) -> None:
    assert api.post("/v1/detokenize", json={"tokens": [5, 7]}).raise_for_status().json() == {"prompt": "5 7"}
    refused(api.post("/v1/detokenize", json={"tokens": [1000]}), 400, "invalid_prompt")
    refused(api.post("/v1/detokenize", json={"tokens": [-1]}), 400, "invalid_request")
    refused(api.post("/v1/detokenize", json={"tokens": [1], "model": "other"}), 404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/detokenize"])
def test_the_operator_s_key_stands_for_no_tenant(start: Start, path: str) -> None:
    api = start(api_keys="one:secret-of-one", admin_key="the-operator")
    body = ask(RED) if path == "/v1/tokenize" else {"tokens": [1]}
    refused(api.post(path, json=body), 401, "invalid_api_key")
    refused(api.post(path, json=body, headers={"x-api-key": "the-operator"}), 401, "invalid_api_key")
    api.post(path, json=body, headers={"x-api-key": "secret-of-one"}).raise_for_status()
