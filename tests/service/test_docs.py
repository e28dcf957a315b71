"""The documents name every route, code, field and setting there is, and none that is not."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from service.chat.cache_schemas import CacheControls
from service.chat.schemas import UNSUPPORTED, ChatRequest
from service.errors import ERROR_TABLE
from service.messages import schemas as messages
from service.responses import schemas as responses
from service.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "api.md").read_text()
OPERATIONS = (DOCS / "operations.md").read_text()


def test_every_route_is_documented(api: httpx.Client) -> None:
    routes = {
        f"{method.upper()} {path}"
        for path, operations in api.get("/openapi.json").json()["paths"].items()
        for method in operations
    }
    documented = set(re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`]*)`", API))
    assert documented == routes


def test_every_error_code_has_its_status() -> None:
    table = {
        code: int(status) for code, status in re.findall(r"^\| `(\w+)` \| (\d{3}) \|", API, re.MULTILINE)
    }
    assert table == {code: kind.status for code, kind in ERROR_TABLE.items()}


def test_every_field_is_documented() -> None:
    for name in (*ChatRequest.model_fields, *CacheControls.model_fields, *UNSUPPORTED):
        assert f"`{name}" in API, name


def test_every_field_of_the_other_dialects_is_documented() -> None:
    dialects = (
        messages.MessagesRequest.model_fields,
        messages.UNSUPPORTED,
        responses.ResponsesRequest.model_fields,
    )
    for name in {name for names in (*dialects, responses.UNSUPPORTED) for name in names}:
        assert f"`{name}" in API, name


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `CONDUIT_(\w+)` \| ([^|]*) \|", OPERATIONS, re.MULTILINE))
    assert {name.lower() for name in rows} == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert rows[name.upper()].strip() == _shown(field.default), name


def _shown(default: object) -> str:
    """A default as the table writes it."""
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`{','.join(map(str, default))}`"
    if isinstance(default, int) and default >= 1024**2 and default % 1024**2 == 0:
        return f"`{default // 1024**3}GiB`" if default % 1024**3 == 0 else f"`{default // 1024**2}MiB`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def test_every_metric_named_exists(api: httpx.Client) -> None:
    api.post("/v1/chat", json={"prompt": "x"}).raise_for_status()
    exposed = set(re.findall(r"^# TYPE (\S+) ", api.get("/metrics").text, re.MULTILINE))
    named = set(re.findall(r"`(conduit_[a-z0-9_]+)`", OPERATIONS))
    assert len(named) > 20
    assert named - exposed == set()
