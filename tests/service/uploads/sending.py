"""Uploads as tests send them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.service.images.pictures import plain

PNG = plain()


def send(api: httpx.Client, content: bytes = PNG, name: str = "page.png", **fields: str) -> httpx.Response:
    return api.post("/v1/files", files={"file": (name, content)}, data={"purpose": "vision", **fields})


def upload(api: httpx.Client, content: bytes = PNG, name: str = "page.png", **fields: str) -> dict[str, Any]:
    found: dict[str, Any] = send(api, content, name, **fields).raise_for_status().json()
    return found


def with_file(name: str, **file: Any) -> list[dict[str, Any]]:
    """A question about a file, as OpenAI's chat writes it."""
    parts = [{"type": "file", "file": {"file_id": name, **file}}, {"type": "text", "text": "What is it?"}]
    return [{"role": "user", "content": parts}]
