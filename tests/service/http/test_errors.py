"""Every refusal has the one body, says what to change, and is true."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.errors import ERROR_TABLE
from tests.service.asking import RED, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, fails
from tests.service.images.pdfs import locked_pdf, pages_pdf
from tests.service.uploads.sending import PNG, send

HIDDEN = {"/": {"GET"}, "/samples.json": {"GET"}, "/openapi.json": {"GET", "HEAD"}}
ALSO_HEAD = {"/livez", "/readyz", "/health"}


def routes(api: httpx.Client) -> dict[str, set[str]]:
    """The methods of every path: those that the document has, and those that it does not show."""
    document = api.get("/openapi.json").json()
    shown = {
        path: {method.upper() for method in operations} | ({"HEAD"} if path in ALSO_HEAD else set())
        for path, operations in document["paths"].items()
    }
    return shown | HIDDEN


@pytest.mark.parametrize("method", ["PATCH", "OPTIONS", "LOCK"])
def test_f13_allow_names_the_methods_of_every_route(api: httpx.Client, method: str) -> None:
    found = {}
    for path in (expected := routes(api)):
        url = path.replace("{key}", "0" * 64).replace("{tenant}", "alice").replace("{name}", "x")
        url = url.replace("{file_id}", "x")
        response = api.request(method, url)
        refused(response, 405, "method_not_allowed")
        found[path] = set(response.headers["allow"].split(", "))
    assert found == expected
    assert len(found) > 15


@pytest.mark.parametrize("path", ["/v1/chat/", "/livez/", "/v1/cache/stats/", "/v1/cache/quotas/alice/"])
def test_no_request_with_its_key_is_sent_on_to_another_address(api: httpx.Client, path: str) -> None:
    refused(api.post(path, json={"prompt": "x"}), 404, "not_found")


def test_f13_what_allow_names_is_answered(api: httpx.Client) -> None:
    for method in api.request("LOCK", "/v1/cache/quotas/alice").headers["allow"].split(", "):
        assert api.request(method, "/v1/cache/quotas/alice").status_code != 405


Asked = Callable[[Start], httpx.Response]
KEYS = {"api_keys": "alice:sk-alice-1", "admin_key": "sk-operator"}
HEX = "0" * 64


def chat(**fields: Any) -> Asked:
    """A question that is refused for `fields`, by the service as it comes."""
    return lambda start: start().post("/v1/chat", json={"prompt": "x", **fields})


def get(path: str, key: str | None = None, **settings: Any) -> Asked:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return lambda start: start(**settings).get(path, headers=headers)


def picture(image: str, **settings: Any) -> Asked:
    return lambda start: start(**settings).post("/v1/chat", json={"prompt": "x", "images": [image]})


def rated(start: Start) -> httpx.Response:
    api = start(rate_limit=1)
    api.post("/v1/chat", json={"prompt": "x"}).raise_for_status()
    return api.post("/v1/chat", json={"prompt": "x"})


def slow(start: Start) -> httpx.Response:
    def body() -> Any:
        yield b"{"
        threading.Event().wait(0.5)
        yield b"}"

    return start(body_timeout=0.1).post(
        "/v1/chat", content=body(), headers={"content-type": "application/json"}
    )


def sent(content: bytes, **settings: Any) -> Asked:
    """An upload that is refused."""
    return lambda start: send(start(**settings), content)


# What somebody can do about it, in the words of the message.
SAID: dict[str, tuple[Asked, str]] = {
    "invalid_json": (lambda start: start().post("/v1/chat", content="{", headers=JSON), "ends too early"),
    "invalid_request": (chat(temperature=3), "'temperature' must be at most 2"),
    "missing_parameter": (chat(messages=[{"content": "x"}]), "Missing parameter: 'messages\\[0\\].role'"),
    "unknown_parameter": (chat(temprature=1), "'temprature'; did you mean 'temperature'"),
    "unsupported_parameter": (chat(audio={}), "'audio' is not supported yet; leave it out"),
    "too_many_images": (chat(images=[RED] * 33), "33 images; the limit is 32"),
    "body_timeout": (slow, "longer than 0.1 s.*send less, or faster"),
    "request_too_large": (
        lambda start: start(max_body_bytes=1024).post("/v1/chat", json={"prompt": "x" * 2000}),
        "larger than 1024 bytes; send images by URL",
    ),
    "unsupported_media_type": (
        lambda start: start().post("/v1/chat", content="{}"),
        "content-type: application",
    ),
    "invalid_image": (picture("data:image/png;base64,aGVsbG8="), "Image 1: .*not a picture of a known kind"),
    "invalid_image_url": (picture("page.png"), "Image 1: .*neither .*http.* nor a data URL"),
    "unsupported_image_format": (
        picture("data:;base64,JVBERi0xLjcKJcOk"),
        "Image 1: its content is pdf, .*send jpeg, png",
    ),
    "image_too_large": (picture(RED, max_image_pixels=10), "Image 1: it has more than 10 pixels"),
    "image_url_blocked": (picture("http://10.0.0.1/"), "Image 1: its URL points to a host"),
    "image_fetch_failed": (picture("http://127.0.0.1:9/"), "Image 1: .*connection to its host failed"),
    "invalid_api_key": (get("/v1/models", **KEYS), "send 'authorization: Bearer <key>'"),
    "admin_key_required": (get("/v1/cache/stats", "sk-alice-1", **KEYS), "operator's key"),
    "not_found": (get("/v1/nothing"), "no such route"),
    "model_not_found": (chat(model="gpt-4o"), "runs 'test-reader' only"),
    "entry_not_found": (get(f"/v1/cache/entries/{HEX}"), "of that key .64 lower-case hex digits"),
    "method_not_allowed": (get("/v1/chat"), "'allow' has those it does"),
    "host_not_allowed": (
        lambda start: start().get("/v1/models", headers={"host": "evil.example"}),
        "CONDUIT_TRUSTED_HOSTS, or set keys",
    ),
    "origin_not_allowed": (
        lambda start: start().post("/v1/cache/verify", headers={"origin": "null"}),
        "ask from its own page",
    ),
    "invalid_prompt": (chat(prompt=" "), "must hold text or an image"),
    "unknown_policy": (chat(cache={"policy": "best"}), "choose from conduit, full, reuse"),
    "rate_limited": (rated, "More than 1 requests a minute"),
    "invalid_multipart": (
        lambda start: start().post("/v1/files", content="x", headers={"content-type": FORM}),
        "no form: it does not follow its boundary",
    ),
    "invalid_document": (sent(b"%PDF-1.7"), "a PDF that is damaged or incomplete"),
    "document_locked": (sent(locked_pdf()), "save it without one"),
    "too_many_pages": (sent(pages_pdf(2), max_pdf_pages=1), "it has 2 pages; the limit is 1"),
    "file_quota_exceeded": (sent(PNG * 99, file_quota_bytes=1024), "1024 bytes of files: delete some"),
    "file_not_found": (get(f"/v1/files/file-{HEX}"), "no file of that id, or its time is over"),
    "file_too_large": (
        sent(b"%PDF-1.7" + b" " * 2000, max_image_bytes=1024, max_file_bytes=1024),
        "larger than 1024 bytes",
    ),
}
JSON = {"content-type": "application/json"}
FORM = "multipart/form-data; boundary=x"
# Said by the engine, or by nobody: tests/engine/serving/test_refusals.py, test_admission.py, tests of service/images,
# tests of service/uploads.
ELSEWHERE = {
    "aborted",
    "context_length_exceeded",
    "file_damaged",
    "image_decode_timeout",
    "image_fetch_timeout",
    "invalid_constraint",
    "invalid_refresh_ratio",
    "invalid_sampling",
    "kv_too_large",
    "queue_full",
    "unsupported_tools",
    "too_much_to_explain",
}


@pytest.mark.parametrize("code", SAID)
def test_every_refusal_says_what_to_change(start: Start, engine: FakeEngine, code: str) -> None:
    asked, words = SAID[code]
    response = asked(start)
    error = refused(response, ERROR_TABLE[code].status, code)
    assert re.search(words, error["message"]), error["message"]
    assert error["type"] == ERROR_TABLE[code].type


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": {"cat": 1}}, "'logit_bias.cat' must be the number of a token"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "'response_format.json_schema.name' must be a text like ^[a-zA-Z0-9_-]{1,64}$",
        ),
    ],
)
def test_a_text_of_another_form_is_told_which(api: httpx.Client, fields: dict[str, Any], words: str) -> None:
    answer = api.post("/v1/chat", json={"prompt": "x", **fields})
    assert words in refused(answer, 400, "invalid_request")["message"]


def test_no_refusal_is_forgotten() -> None:
    refusals = {code for code, kind in ERROR_TABLE.items() if kind.status < 500}
    assert SAID.keys() | ELSEWHERE == refusals
    assert not SAID.keys() & ELSEWHERE


@pytest.mark.parametrize("code", sorted(ELSEWHERE - {"aborted"}))
def test_what_the_engine_says_is_handed_on_word_by_word(
    api: httpx.Client, engine: FakeEngine, code: str
) -> None:
    engine.script = fails(code, "The limit is 7; ask for less.")
    error = refused(api.post("/v1/chat", json={"prompt": "x"}), ERROR_TABLE[code].status, code)
    assert error["message"] == "The limit is 7; ask for less."
