"""Pages from elsewhere: none may ask unless the operator lists where they are from."""

from __future__ import annotations

import httpx
import pytest
from pydantic import ValidationError

from service.settings import Settings
from tests.service.asking import ask, refused
from tests.service.conftest import Start

APP = "https://app.example.org"
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-lang",
}


def test_nobody_is_let_in_by_default(api: httpx.Client) -> None:
    answer = api.options("/v1/chat", headers=PREFLIGHT)
    assert not any(name.startswith("access-control-") for name in answer.headers)
    refused(api.post("/v1/chat", json=ask(), headers={"origin": APP}), 403, "origin_not_allowed")


@pytest.mark.parametrize("keys", [{}, {"api_keys": "one:secret-of-one"}], ids=["open", "with keys"])
def test_a_page_of_the_list_asks_and_reads(start: Start, keys: dict[str, str]) -> None:
    api = start(cors_origins=f"{APP}, http://localhost:3000", **keys)
    leave = api.options("/v1/chat", headers=PREFLIGHT)
    assert leave.status_code == 200
    assert leave.headers["access-control-allow-origin"] == APP
    assert "access-control-allow-credentials" not in leave.headers
    key = {"authorization": "Bearer secret-of-one"} if keys else {}
    answer = api.post("/v1/chat", json=ask(stream=True), headers={"origin": APP, **key})
    assert answer.raise_for_status().headers["access-control-allow-origin"] == APP
    assert "x-cache" in answer.headers["access-control-expose-headers"]


def test_errors_can_be_read_too(start: Start) -> None:
    api = start(cors_origins=APP, api_keys="one:secret-of-one")
    answer = api.post("/v1/chat", json=ask(), headers={"origin": APP})
    refused(answer, 401, "invalid_api_key")
    assert answer.headers["access-control-allow-origin"] == APP


def test_others_stay_out(start: Start) -> None:
    api = start(cors_origins=APP)
    leave = api.options("/v1/chat", headers={**PREFLIGHT, "origin": "https://evil.example"})
    assert leave.status_code == 400 and "access-control-allow-origin" not in leave.headers
    answer = api.post("/v1/chat", json=ask(), headers={"origin": "https://evil.example"})
    refused(answer, 403, "origin_not_allowed")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["*", "app.example.org", "https://*.example.org", "https://a/b", "ftp://a", "https://a:99999"]
)
def test_only_origins_by_name_are_taken(origin: str) -> None:
    with pytest.raises(ValidationError, match="expected"):
        Settings(cors_origins=origin)  # type: ignore[arg-type]


def test_origins_are_written_as_browsers_do() -> None:
    assert Settings(cors_origins="HTTPS://App.Example.org").cors_origins == (APP,)  # type: ignore[arg-type]
