"""Multipart bodies, whole, in pieces and broken."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import httpx
import pytest

from service.errors import RequestError
from service.uploads.form import FormReader
from tests.service.asking import refused
from tests.service.conftest import Start
from tests.service.serving import eventually
from tests.service.uploads.sending import PNG, send

TYPE = "multipart/form-data; boundary=xyz"
BODY = (
    b'--xyz\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision\r\n'
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    b"\r\n--xy\r\n-content\r\n--xyz--\r\n"
)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_form_is_read_in_whatever_pieces_it_comes(step: int) -> None:
    form = FormReader(TYPE)
    content = b"".join(form.feed(BODY[start : start + step]) for start in range(0, len(BODY), step))
    assert content == b"\r\n--xy\r\n-content"
    assert form.finish() == {"purpose": "vision"} and form.filename == "a.png"


def test_nothing_of_the_content_is_kept() -> None:
    form = FormReader(TYPE)
    head, _, _ = BODY.partition(b"\r\n--xy\r\n")
    form.feed(head)
    assert sum(len(form.feed(b"x" * 65536)) for _ in range(64)) > 63 * 65536
    assert not form._content and len(form._text) < 64


@pytest.mark.parametrize("end", range(0, len(BODY) - 4, 9))
def test_a_form_that_ends_early_is_refused(end: int) -> None:
    form = FormReader(TYPE)
    form.feed(BODY[:end])
    with pytest.raises(RequestError) as caught:
        form.finish()
    assert caught.value.code == "invalid_multipart"


def part(head: str, body: bytes = b"x") -> bytes:
    return f"--xyz\r\n{head}\r\n\r\n".encode() + body + b"\r\n"


NAMED = 'content-disposition: form-data; name="{}"'
FILE = part(NAMED.format("file") + '; filename="a"')
WRONG = {
    "no boundary": (b"hello", "invalid_multipart"),
    "no name": (part("content-disposition: form-data"), "invalid_multipart"),
    "no disposition": (part("content-type: text/plain"), "invalid_multipart"),
    "a head without end": (b"--xyz\r\n" + b"a: b\r\n" * 1000, "invalid_multipart"),
    "a long head": (b"--xyz\r\na: " + b"b" * 100_000, "invalid_multipart"),
    "a field twice": (2 * part(NAMED.format("purpose")), "invalid_request"),
    "the file twice": (2 * FILE, "invalid_request"),
    "a long field": (part(NAMED.format("purpose"), b"x" * 1025), "invalid_request"),
    "too many parts": (b"".join(part(NAMED.format(i)) for i in range(17)), "invalid_request"),
    "a long name": (part(NAMED.format("file") + f'; filename="{"a" * 256}"'), "invalid_request"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_form_is_told(name: str) -> None:
    body, code = WRONG[name]
    with pytest.raises(RequestError) as caught:
        FormReader(TYPE).feed(body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "multipart/form-data-x; boundary=a", "multipart/mixed; boundary=a"]
)
def test_only_forms_are_taken(kind: str) -> None:
    with pytest.raises(RequestError) as caught:
        FormReader(kind)
    assert caught.value.code == "unsupported_media_type"


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "x" * 257])
def test_a_form_needs_a_boundary(boundary: str) -> None:
    with pytest.raises(RequestError) as caught:
        FormReader("multipart/form-data" + boundary)
    assert caught.value.code == "invalid_multipart"


FIELDS = {
    "purpose": ({"purpose": "batch"}, "invalid_request"),
    "expires_after[seconds]": (
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
        "invalid_request",
    ),
    "expires_after[anchor]": (
        {"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"},
        "invalid_request",
    ),
    "expires_after": ({"expires_after[seconds]": "3600"}, "invalid_request"),
    "warm": ({"warm": "perhaps"}, "invalid_request"),
    "sepia": ({"sepia": "yes"}, "unknown_parameter"),
}


@pytest.mark.parametrize("param", FIELDS)
def test_a_field_that_is_wrong_is_named(api: httpx.Client, param: str) -> None:
    fields, code = FIELDS[param]
    assert refused(send(api, **fields), 400, code)["param"] == param


def test_what_is_missing_is_named(api: httpx.Client) -> None:
    no_purpose = api.post("/v1/files", files={"file": PNG})
    assert refused(no_purpose, 400, "missing_parameter")["param"] == "purpose"
    no_file = api.post("/v1/files", files={"purpose": (None, "vision")})
    assert refused(no_file, 400, "missing_parameter")["param"] == "file"


def test_a_query_is_refused(api: httpx.Client) -> None:
    answer = api.post("/v1/files?warm=true", files={"file": PNG}, data={"purpose": "vision"})
    assert refused(answer, 400, "unknown_parameter")["param"] == "warm"


def test_what_stands_behind_the_form_is_bounded(start: Start) -> None:
    api = start(max_image_bytes=1024, max_file_bytes=1024)
    endless = b"x" * 70_000
    answer = api.post("/v1/files", content=BODY + endless, headers={"content-type": TYPE})
    refused(answer, 413, "file_too_large")


HEAD = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=xyz\r\n"


def test_a_client_that_leaves_in_the_middle_leaves_nothing(start: Start, tmp_path: Path) -> None:
    api = start()
    send(api).raise_for_status()
    with socket.create_connection((api.base_url.host, api.base_url.port or 80)) as connection:
        half = part(NAMED.format("file") + '; filename="a.png"', PNG * 20)
        connection.sendall(HEAD + b"content-length: 100000\r\n\r\n" + half)
        eventually(lambda: len(os.listdir(tmp_path / "files")) == 4, "it has begun")
    eventually(lambda: len(os.listdir(tmp_path / "files")) == 3, "it is forgotten")
    assert 'conduit_file_uploads_total{outcome="client_gone"} 1.0' in api.get("/metrics").text


def test_half_a_form_and_then_nothing_is_a_408(start: Start, tmp_path: Path) -> None:
    api = start(body_timeout=0.2)
    with socket.create_connection((api.base_url.host, api.base_url.port or 80)) as connection:
        connection.sendall(HEAD + b"content-length: 100000\r\n\r\n" + BODY[:100])
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
    eventually(lambda: os.listdir(tmp_path / "files") == [".lock"], "it is forgotten")
