"""Lines of the log: what they hold, and what they never do."""

from __future__ import annotations

import json
import logging

import httpx
import pytest

from service.observability.logs import JsonFormatter, TextFormatter
from tests.service.serving import eventually


def test_requests_are_logged_with_their_id(api: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="service"):
        api.post("/v1/chat", json={"prompt": "a secret question"}, headers={"x-request-id": "mine-2"})
        eventually(lambda: any(r.message == "request" for r in caplog.records), "the access line")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    chat = next(line for line in lines if line["message"] == "chat")
    access = next(line for line in lines if line["message"] == "request")
    assert chat["request_id"] == access["request_id"] == "mine-2"
    assert (chat["outcome"], chat["tenant"], access["status"], access["path"]) == (
        "ok",
        "default",
        200,
        "/v1/chat",
    )
    assert "secret" not in json.dumps(lines)


def test_log_lines_carry_tracebacks_and_fields() -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        import sys

        record = logging.LogRecord("a", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    record.__dict__["count"] = 3
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["count"]) == ("error", 3)
    assert "boom" in line["traceback"]
    record.__dict__["path"] = "/a\n2026-01-01 ERROR forged"
    text = TextFormatter().format(record)
    assert "count=3" in text and "\n2026" not in text
