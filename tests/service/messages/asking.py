"""What tests of `/v1/messages` ask."""

from __future__ import annotations

from typing import Any

from tests.service.asking import RED

PNG = RED.partition(",")[2]
IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
}
BY_URL: dict[str, Any] = {"type": "image", "source": {"type": "url", "url": RED}}
CLICK: dict[str, Any] = {
    "name": "click",
    "description": "Clicks.",
    "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}},
}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "ok"},
        {"type": "tool_use", "id": "t1", "name": "click", "input": {"x": 1}},
    ],
}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def result(content: object = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}


def body(*turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 50, "messages": list(turns or (user("go"),)), **fields}
