"""Schemathesis makes up calls of every operation: all are answered as our OpenAPI document says, none with a 5xx."""

from __future__ import annotations

from typing import Any

import httpx
import schemathesis
from hypothesis import strategies as st

from service.app import create_app
from service.settings import Settings
from tests.service.fake_engine import FakeEngine
from tests.service.uploads.sending import upload

HELD = {"key": "a" * 64, "tenant": "alice", "name": "test-reader", "file_id": f"file-{'a' * 32}"}


def small(part: Any) -> Any:
    """The document without its largest bounds: bodies that exceed these are as large as bodies may be."""
    if isinstance(part, list):
        return [small(item) for item in part]
    if not isinstance(part, dict):
        return part
    large = {
        name for name in ("maxItems", "maxLength") if isinstance(part.get(name), int) and part[name] > 1000
    }
    return {name: small(value) for name, value in part.items() if name not in large}


document = small(create_app(Settings(), FakeEngine()).openapi())
# Both paths of the chat are one handler, which has the longest list of fields by far.
schema = schemathesis.openapi.from_dict(document).exclude(path="/v1/chat/completions")
schema.config.generation.update(max_examples=10, deterministic=True)
# A schema cannot say which texts are pictures that can be had, so not all that fits it is accepted.
schema.config.checks.update(excluded_check_names=["positive_data_acceptance"])


@schema.hook
def flatmap_path_parameters(context: Any, made_up: dict[str, Any] | None) -> st.SearchStrategy[Any]:
    """Ask about what is there, too."""
    return st.sampled_from([made_up, {name: HELD[name] for name in made_up or ()}])


@schema.parametrize()
def test_answers_are_as_documented(case: schemathesis.Case, shared: tuple[FakeEngine, httpx.Client]) -> None:
    engine, client = shared
    engine.reset()
    engine.cache.put(HELD["key"], pinned="hard")
    engine.cache.limits[HELD["tenant"]] = 1
    if case.path_parameters.get("file_id") == HELD["file_id"]:
        case.path_parameters["file_id"] = upload(client)["id"]  # the service names its files itself
    case.call_and_validate(base_url=str(client.base_url))


def test_openapi_has_examples_and_resolves(api: httpx.Client) -> None:
    document = api.get("/openapi.json").raise_for_status().json()
    operation = document["paths"]["/v1/chat"]["post"]
    media = operation["requestBody"]["content"]["application/json"]
    for example in media["examples"].values():
        answer = api.post(
            "/v1/chat", json={**example["value"], "images": None, "messages": None, "prompt": "x"}
        )
        assert answer.status_code == 200
    for reference in _references(document):
        node: Any = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    assert {"ChatRequest", "EvictRequest", "EntryPage", "CacheStats", "Error"} <= set(
        document["components"]["schemas"]
    )


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in _references(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in _references(value)]
    return []
