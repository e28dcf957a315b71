"""Traces of the real service, whose spans come from two processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from demo.random_model import TINY, write_random_model
from tests.collector import collecting
from tests.e2e.live import PATIENT
from tests.serving.crowd import CONTEXT, Service, questions

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.slow
def test_a_request_is_one_trace_through_both_processes(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.proto", reason="the otel extra is not installed")
    model = write_random_model(tmp_path / "model", replace(TINY, context=CONTEXT))
    with collecting() as collector:
        # It sends the rest of its spans when it ends.
        with Service(tmp_path, model=str(model), threads="1", otlp_endpoint=collector.endpoint) as service:
            (asked,) = questions(service.url, 1, seed=8)
            with httpx.Client(base_url=service.url, timeout=PATIENT, trust_env=False) as api:
                api.post("/v1/chat", json=asked).raise_for_status()
                called = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
                api.post("/v1/chat", json=asked, headers=called).raise_for_status()
        spans = collector.spans()
    first, second = (
        [(name, span) for name, span in spans if (span.trace_id.hex() == TRACE) is called]
        for called in (False, True)
    )
    for trace, caller in ((first, ""), (second, CALLER)):
        assert len({span.trace_id for _, span in trace}) == 1
        (root,) = (span for name, span in trace if span.parent_span_id.hex() == caller)
        assert root.name == "chat"
        children = {(name, span.name) for name, span in trace if span.parent_span_id == root.span_id}
        assert {("conduit-api", "images"), ("conduit-worker", "engine.decode")} <= children
        assert len(children) == len(trace) - 1
