"""Uploads over HTTP: what is kept, what is refused and by which code, and what is told of it."""

from __future__ import annotations

import errno
import logging
import os
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.messages import GenerateRequest
from tests.service.asking import RED, events, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, fails
from tests.service.images.pdfs import locked_pdf, pages_pdf, plain_pdf
from tests.service.images.pictures import data_url, noisy, plain, png_header
from tests.service.serving import eventually
from tests.service.uploads.sending import PNG, send, upload, with_file


def ask(api: httpx.Client, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    return api.post("/v1/chat", json={"messages": messages, **fields})


BAD = {
    "empty": (b"", "invalid_image"),
    "no picture": (b"hello", "invalid_image"),
    "half a picture": (noisy()[:2000], "invalid_image"),
    "a kind that is not taken": (b"II*\x00" + b"x" * 100, "unsupported_image_format"),
    "too many pixels": (png_header(100_000, 100_000), "image_too_large"),
    "a damaged PDF": (plain_pdf((1, 2, 3))[:300], "invalid_document"),
    "a locked PDF": (locked_pdf(), "document_locked"),
    "a PDF of no pages": (pages_pdf(0), "invalid_document"),
    "a PDF of thousands": (pages_pdf(1001), "too_many_pages"),
    "a huge page": (pages_pdf(1, b"0 0 14400 14400"), "image_too_large"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_asked_about_is_refused_at_once(api: httpx.Client, name: str) -> None:
    before = api.get("/v1/files").json()["data"]
    content, code = BAD[name]
    error = refused(send(api, content), 400, code)
    assert error["param"] == "file" and error["message"].startswith("The file: ")
    assert api.get("/v1/files").json()["data"] == before


def test_a_picture_is_refused_by_the_code_that_a_chat_has(api: httpx.Client) -> None:
    for name in ("half a picture", "a kind that is not taken", "too many pixels"):
        content, code = BAD[name]
        refused(ask(api, [{"role": "user", "content": [_picture(data_url(content))]}]), 400, code)


def _picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def test_sizes_are_bounded_by_what_the_file_is(start: Start, tmp_path: Path) -> None:
    api = start(max_image_bytes=1024, max_file_bytes=4096)
    picture = PNG + b"x" * (1025 - len(PNG))
    refused(send(api, picture), 400, "image_too_large")
    pdf = plain_pdf((1, 2, 3))
    upload(api, pdf + b"\n" * (4096 - len(pdf)))
    refused(send(api, pdf + b"\n" * (4097 - len(pdf))), 413, "file_too_large")
    assert len(os.listdir(tmp_path / "files")) == 3


def test_quotas_are_told(start: Start) -> None:
    api = start(file_quota_count=1, file_quota_bytes=10_000)
    file = upload(api)
    error = refused(send(api, plain((1, 2, 3))), 403, "file_quota_exceeded")
    assert "more than 1 files" in error["message"]
    api.delete(f"/v1/files/{file['id']}").raise_for_status()
    refused(send(api, noisy((90, 90))), 403, "file_quota_exceeded")
    upload(api)


REFERENCES: dict[str, Any] = {
    "OpenAI's chat": lambda name: {"type": "file", "file": {"file_id": name, "filename": "a.pdf"}},
    "OpenAI's assistants": lambda name: {"type": "image_file", "image_file": {"file_id": name}},
    "a URL": lambda name: {"type": "image_url", "image_url": {"url": name, "detail": "high"}},
    "a URL alone": lambda name: {"type": "image_url", "image_url": f" {name}\n"},
    "Responses, an image": lambda name: {"type": "input_image", "file_id": name},
    "Responses, a file": lambda name: {"type": "input_file", "file_id": name},
    "Anthropic": lambda name: {"type": "image", "source": {"type": "file", "file_id": name}},
}


@pytest.mark.parametrize("dialect", REFERENCES)
def test_a_file_stands_where_an_image_may(api: httpx.Client, engine: FakeEngine, dialect: str) -> None:
    name = upload(api, plain_pdf((7, 0, 0), (8, 0, 0)))["id"]
    text = {"type": "text", "text": "x"}
    part = REFERENCES[dialect]
    ask(api, [{"role": "user", "content": [text, part(name), text, _picture(RED)]}]).raise_for_status()
    request = engine.requests[-1]
    assert [image.pixels[0] for image in request.images] == [7, 8, 200]
    assert [type(part).__name__ for part in request.messages[0].parts] == [
        *("TextPart", "ImagePart", "ImagePart", "TextPart", "ImagePart"),
    ]
    gone = part("file-" + "0" * 32)
    error = refused(ask(api, [{"role": "user", "content": [text, gone]}]), 404, "file_not_found")
    assert error["param"].startswith("messages[0].content[1].")


def test_a_file_inside_a_message_is_refused_by_name(api: httpx.Client) -> None:
    messages = with_file(upload(api)["id"], file_data="data:application/pdf;base64,JVBERi0=")
    error = refused(ask(api, messages), 400, "unsupported_parameter")
    assert error["param"] == "messages[0].content[0].file.file_data"


@pytest.mark.parametrize("dialect", ["OpenAI's assistants", "Responses, an image", "Responses, a file"])
def test_pages_of_low_detail_are_small(api: httpx.Client, engine: FakeEngine, dialect: str) -> None:
    part = REFERENCES[dialect](upload(api, plain_pdf((7, 0, 0), size=(600, 300)))["id"])
    part.get("image_file", part)["detail"] = "low"
    ask(api, [{"role": "user", "content": [part]}]).raise_for_status()
    assert [(image.width, image.height) for image in engine.requests[-1].images] == [(512, 256)]


def test_an_endless_id_is_one_that_nobody_has(api: httpx.Client) -> None:
    refused(
        api.post("/v1/chat", json={"prompt": "x", "images": ["file-" + "0" * 9_000_000]}),
        404,
        "file_not_found",
    )


def test_the_shorthand_takes_files(api: httpx.Client, engine: FakeEngine) -> None:
    name = upload(api, plain_pdf((7, 0, 0), (8, 0, 0)))["id"]
    api.post("/v1/chat", json={"prompt": "x", "images": [name, RED]}).raise_for_status()
    assert [image.pixels[0] for image in engine.requests[-1].images] == [7, 8, 200]


def test_pages_are_chosen_and_keep_their_order(api: httpx.Client, engine: FakeEngine) -> None:
    name = upload(api, plain_pdf(*((n, 0, 0) for n in range(1, 6))))["id"]
    ask(api, with_file(name, pages="4-,1")).raise_for_status()
    assert [image.pixels[0] for image in engine.requests[-1].images] == [4, 5, 1]
    for wrong in ("6", "0", "x", "2-1"):
        error = refused(ask(api, with_file(name, pages=wrong)), 400, "invalid_request")
        assert error["param"] == "messages[0].content[0].file.file_id"


def test_more_pages_than_a_request_may_hold_are_refused_with_the_way_out(start: Start) -> None:
    api = start(max_images=3)
    name = upload(api, plain_pdf(*((n, 0, 0) for n in range(5))))["id"]
    error = refused(ask(api, with_file(name)), 400, "too_many_images")
    assert "choose some with 'pages'" in error["message"] and "more than 3 images" in error["message"]
    ask(api, with_file(name, pages="1-3")).raise_for_status()
    half = with_file(name, pages="1-2")
    twice = [*half, {"role": "assistant", "content": "a"}, *half]
    refused(ask(api, twice), 400, "too_many_images")


def test_the_same_page_is_drawn_once(start: Start, engine: FakeEngine) -> None:
    api = start(admin_key="operator-1")
    name = upload(api, plain_pdf((1, 0, 0), (2, 0, 0)))["id"]
    for _ in range(3):
        ask(api, with_file(name)).raise_for_status()
    text = api.get("/metrics", headers={"x-api-key": "operator-1"}).text
    (count,) = [line for line in text.splitlines() if line.startswith("conduit_image_decode_seconds_count")]
    assert count.endswith(" 1.0")  # the second page: the first was drawn when it was uploaded


def test_a_damaged_file_is_told_and_gone(start: Start, tmp_path: Path) -> None:
    api = start(upload_cache_bytes=0)
    name = upload(api)["id"]
    content = tmp_path / "files" / name
    content.write_bytes(content.read_bytes()[:-1] + b"?")
    refused(ask(api, with_file(name)), 410, "file_damaged")
    eventually(
        lambda: 'conduit_files_removed_total{reason="damaged"} 1.0' in api.get("/metrics").text, "it is gone"
    )
    assert api.get(f"/v1/files/{name}").status_code == 404
    assert os.listdir(tmp_path / "files") == [".lock"]


def test_warm_compiles_every_page_before_the_answer(api: httpx.Client, engine: FakeEngine) -> None:
    file = upload(api, plain_pdf((1, 0, 0), (2, 0, 0)), warm="true")
    assert file["warm"] == {"pages": 2, "failed": None}
    asked = engine.requests
    assert [request.images[0].pixels[0] for request in asked] == [1, 2]
    assert {(request.priority, request.cache.policy, request.tenant) for request in asked} == {
        (101, "reuse", "default")
    }
    assert upload(api, warm="false")["warm"] is None and len(engine.requests) == 2


def test_an_upload_that_cannot_be_warmed_is_kept_all_the_same(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = fails("queue_full")
    file = upload(api, plain_pdf((1, 0, 0), (2, 0, 0)), warm="true")
    assert file["warm"]["pages"] == 0 and file["warm"]["failed"]["code"] == "queue_full"
    assert api.get(f"/v1/files/{file['id']}").status_code == 200


def test_the_content_is_nothing_that_a_browser_shows(api: httpx.Client) -> None:
    file = upload(api, name='a"b\r\nx: y/../c d.png')
    assert file["filename"] == "c d.png"
    head = api.get(f"/v1/files/{file['id']}/content").raise_for_status().headers
    assert head["content-disposition"] == "attachment; filename*=UTF-8''c%20d.png"
    assert head["content-type"] == "application/octet-stream"
    assert head["x-content-type-options"] == "nosniff" and "sandbox" in head["content-security-policy"]


def test_the_operator_s_key_is_no_tenant(start: Start) -> None:
    api = start(api_keys="alice:sk-alice-1", admin_key="operator-1")
    for key in ("operator-1", "wrong-key", ""):
        for path in ("/v1/files", f"/v1/files/file-{'0' * 32}"):
            refused(api.get(path, headers={"x-api-key": key}), 401, "invalid_api_key")
        refused(
            api.post("/v1/files", files={"file": PNG}, headers={"x-api-key": key}), 401, "invalid_api_key"
        )


def test_what_comes_and_goes_is_in_the_audit_trail_and_the_metrics(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    api = start()
    with caplog.at_level(logging.INFO, logger="service.observability.audit"):
        file = upload(api, name="secret-name.png")
        send(api, b"hello")
        api.delete(f"/v1/files/{file['id']}").raise_for_status()
    trail = [vars(record) for record in caplog.records if record.message == "audit"]
    assert [(line["action"], line["file"], line["tenant"], line["bytes"]) for line in trail] == [
        ("upload file", file["id"], "default", len(PNG)),
        ("delete file", file["id"], "default", len(PNG)),
    ]
    assert "secret-name" not in repr(trail)
    text = api.get("/metrics").text
    for line in (
        'conduit_file_uploads_total{outcome="ok"} 1.0',
        'conduit_file_uploads_total{outcome="invalid_image"} 1.0',
        'conduit_files_removed_total{reason="deleted"} 1.0',
        "conduit_files 0.0",
        "conduit_file_bytes 0.0",
    ):
        assert line in text, line


def test_a_file_whose_time_is_over_is_no_longer_there(start: Start) -> None:
    api = start(file_ttl=1)
    file = upload(api)
    assert file["expires_at"] == file["created_at"] + 1
    eventually(lambda: api.get(f"/v1/files/{file['id']}").status_code == 404, "its second is over")
    refused(ask(api, with_file(file["id"])), 404, "file_not_found")


def test_a_disk_that_is_full_is_a_507(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    api = start()
    upload(api)
    with monkeypatch.context() as broken:
        broken.setattr("service.files.folder.write_all", full)
        answer = send(api, plain((1, 2, 3)))
    refused(answer, 507, "storage_full")
    assert answer.headers["retry-after"] == "30"
    assert len(os.listdir(tmp_path / "files")) == 3
    upload(api)


def test_who_leaves_while_an_upload_is_warmed_ends_the_work(start: Start, engine: FakeEngine) -> None:
    def never(request: GenerateRequest) -> list[Any]:
        return [60.0]

    engine.script = never
    api = start()
    form = {"files": {"file": ("a.png", PNG)}, "data": {"purpose": "vision", "warm": "true"}}
    request = api.build_request("POST", "/v1/files", **form)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((api.base_url.host, api.base_url.port or 80)) as connection:
        connection.sendall(f"POST /v1/files HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        eventually(lambda: engine.open == 1, "it is being warmed")
    eventually(lambda: engine.open == 0, "the warming was given up")
    assert len(api.get("/v1/files").json()["data"]) == 1


def test_the_operator_warms_every_page_of_a_tenant_s_file(start: Start, engine: FakeEngine) -> None:
    api = start(api_keys="alice:sk-alice-1,bob:sk-bob-12", admin_key="operator-1")
    form = {"files": {"file": plain_pdf((1, 0, 0), (2, 0, 0))}, "data": {"purpose": "user_data"}}
    name = api.post("/v1/files", headers={"x-api-key": "sk-alice-1"}, **form).raise_for_status().json()["id"]
    order = {"images": [RED, name], "tenant": "alice"}
    answer = api.post("/v1/cache/warm", headers={"x-api-key": "operator-1"}, json=order)
    assert [told["image"] for told in events(answer)[:-1]] == [0, 1, 1]
    assert [request.images[0].pixels[0] for request in engine.requests] == [200, 1, 2]
    others = api.post("/v1/cache/warm", headers={"x-api-key": "operator-1"}, json={**order, "tenant": "bob"})
    assert refused(others, 404, "file_not_found")["param"] == "images[1]"
