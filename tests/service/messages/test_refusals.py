"""What `/v1/messages` refuses, in Anthropic's shape, by code and field."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.fake_engine import FakeEngine
from tests.service.messages.asking import CALLED, CLICK, body, result, text, user

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({"messages": []}, "invalid_request", "messages"),
    "unknown": (body(tempreture=1), "unknown_parameter", "tempreture"),
    "thinking": (
        body(thinking={"type": "enabled", "budget_tokens": 2000}),
        "unsupported_parameter",
        "thinking",
    ),
    "effort": (body(output_config={"effort": "high"}), "unsupported_parameter", "output_config.effort"),
    "servers": (body(mcp_servers=[{"type": "url"}]), "unsupported_parameter", "mcp_servers"),
    "a role": (body({"role": "system", "content": "x"}), "invalid_request", "messages[0].role"),
    "a document by content": (
        body(user([{"type": "document", "source": {"type": "base64", "data": "x"}}])),
        "invalid_request",
        "messages[0].content[0].source",
    ),
    "a search": (body(user([{"type": "search_result"}])), "invalid_request", "messages[0].content[0]"),
    "thoughts": (
        body(user("x"), {"role": "assistant", "content": [{"type": "thinking"}]}),
        "invalid_request",
        "messages[1].content[0]",
    ),
    "a source": (
        body(user([{"type": "image", "source": {"type": "ftp"}}])),
        "invalid_request",
        "messages[0].content[0].source",
    ),
    "nothing said": (body(user("  ")), "invalid_prompt", "messages[0].content"),
    "the assistant alone": (body({"role": "assistant", "content": "y"}), "invalid_prompt", "messages"),
    "a provider's tool": (
        body(tools=[{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]),
        "invalid_request",
        "tools[0].type",
    ),
    "a choice of nothing": (body(tool_choice={"type": "any"}), "invalid_request", "tool_choice"),
    "a tool without a name": (
        body(tools=[CLICK], tool_choice={"type": "tool"}),
        "invalid_request",
        "tool_choice",
    ),
    "another tool": (
        body(tools=[CLICK], tool_choice={"type": "tool", "name": "fly"}),
        "invalid_request",
        "tool_choice",
    ),
    "two of a name": (body(tools=[CLICK, CLICK]), "invalid_request", "tools[1]"),
    "a deferred tool": (
        body(tools=[{**CLICK, "defer_loading": True}]),
        "unsupported_parameter",
        "tools[0].defer_loading",
    ),
    "a result of nothing": (body(user([result()])), "invalid_prompt", "messages[0].content[0].tool_use_id"),
    "no result": (body(user("x"), CALLED, user("y")), "invalid_prompt", "messages[2].content"),
    "a result behind text": (
        body(user("x"), CALLED, user([text("y"), result()])),
        "invalid_request",
        "messages[2].content[1]",
    ),
    "a result of the assistant": (
        body(user("x"), {"role": "assistant", "content": [result()]}),
        "invalid_request",
        "messages[1].content[0]",
    ),
    "a call of the user": (body(user(CALLED["content"])), "invalid_request", "messages[0].content[1]"),
    "text behind a call": (
        body(user("x"), {"role": "assistant", "content": CALLED["content"][::-1]}),
        "invalid_request",
        "messages[1].content[1]",
    ),
    "citations": (
        body(user([text("x", citations=[{"type": "char_location"}])])),
        "unsupported_parameter",
        "messages[0].content[0].citations",
    ),
    "a policy": (body(cache={"policy": "paper"}), "unknown_policy", "cache.policy"),
    "salts": (body(cache_salt="a", cache={"salt": "b"}), "invalid_request", "cache_salt"),
}


@pytest.mark.parametrize(("asked", "code", "param"), CASES.values(), ids=CASES.keys())
def test_refused(api: httpx.Client, engine: FakeEngine, asked: dict[str, Any], code: str, param: str) -> None:
    response = api.post("/v1/messages", json=asked)
    assert response.status_code == 400
    told = response.json()
    assert told["type"] == "error"
    assert (told["error"]["code"], told["error"]["param"]) == (code, param), told
    assert told["error"]["type"] == "invalid_request_error"
    assert engine.requests == []
