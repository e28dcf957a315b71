"""Spans of a request: children of the caller's, parents of the engine's."""

from __future__ import annotations

import pytest

from engine.messages import GenerateRequest
from engine.tracing import current_traceparent
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, Step, says
from tests.service.images.pictures import data_url, plain
from tests.service.serving import eventually

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_spans_join_the_callers_trace(
    start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the otel extra is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    handed_on: list[str | None] = []

    def script(request: GenerateRequest) -> list[Step]:
        handed_on.append(current_traceparent())
        return list(says("one two")(request))

    engine.script = script
    asked = {"prompt": "x", "images": [data_url(plain())], "stream": True, "max_tokens": 9}
    api = start()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine-3"}
    api.post("/v1/chat", json=asked, headers=headers).raise_for_status()
    eventually(lambda: len(exporter.get_finished_spans()) == 2, "both spans ended")
    images, chat = exporter.get_finished_spans()
    assert (images.name, chat.name) == ("images", "chat")
    assert chat.parent is not None and images.parent is not None
    assert (f"{chat.context.trace_id:032x}", f"{chat.parent.span_id:016x}") == (TRACE, PARENT)
    assert images.parent.span_id == chat.context.span_id
    assert handed_on == [f"00-{TRACE}-{chat.context.span_id:016x}-01"]
    assert chat.attributes is not None
    assert (chat.attributes["request.id"], chat.attributes["outcome"]) == ("mine-3", "ok")
    kinds = ("reused", "compiled", "refreshed")
    assert [chat.attributes[f"visual_tokens.{kind}"] for kind in kinds] == [0, 32, 4]
    told = {name: value for name, value in chat.attributes.items() if name.startswith("gen_ai.")}
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "conduit",
        "gen_ai.request.model": "test-reader",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.id": engine.requests[-1].id,
        "gen_ai.response.model": "test-reader",
        "gen_ai.usage.input_tokens": 48,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.text.input_tokens": 12,
        "gen_ai.usage.image.input_tokens": 36,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.image.cache_read.input_tokens": 0,
        "gen_ai.usage.cache_write.input_tokens": 36,
    }


def test_malformed_traceparent_is_ignored(start: Start) -> None:
    assert start().post("/v1/chat", json={"prompt": "x"}, headers={"traceparent": "zz"}).status_code == 200
