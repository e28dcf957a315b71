"""What tests of several rooms ask, and how they read the answers."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx

from tests.service.images.pictures import data_url, plain

HEAD = "POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

QUESTION = "What is the total?"
RED = data_url(plain())


def ask(*images: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": QUESTION, "images": list(images), **fields}


def user(content: object, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of `response`, checked for the shape that every error has."""
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (response.status_code, error["code"]) == (status, code), error
    assert response.headers["x-request-id"]
    assert isinstance(error["message"], str) and error["message"]
    found: dict[str, Any] = error
    return found


def events(response: httpx.Response) -> list[Any]:
    """The data of a finished stream; `[DONE]` as the text it is."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def open_request(api: httpx.Client, **fields: Any) -> socket.socket:
    """Send a chat request on a connection of its own, to be closed at will."""
    body = json.dumps({"prompt": "What is it?", **fields}).encode()
    head = HEAD + f"content-length: {len(body)}\r\n\r\n"
    connection = socket.create_connection((api.base_url.host, api.base_url.port or 80))
    connection.sendall(head.encode() + body)
    return connection
