"""Spans of one request, sent over real OTLP/HTTP to a collector on loopback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.tracing import current_traceparent, record_phases
from tests.collector import collecting

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"

SENDER = """
import sys
from opentelemetry import trace
from engine.tracing import configure, record_phases
configure(sys.argv[1], "conduit-worker")
record_phases(sys.argv[2], ("engine.queue", "engine.images"), (1.0, 1.5, 3.0), {"refreshed": 7})
trace.get_tracer_provider().shutdown()
"""


def test_nothing_is_traced_by_default() -> None:
    assert current_traceparent() is None
    record_phases(None, ("a",), (0.0, 1.0), {})


def test_phases_arrive_as_children_of_the_caller_s_span() -> None:
    pytest.importorskip("opentelemetry.proto", reason="the otel extra is not installed")
    with collecting() as collector:
        command = [sys.executable, "-c", SENDER, collector.endpoint, f"00-{TRACE}-{PARENT}-01"]
        sender = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert sender.returncode == 0, sender.stderr
    spans = [span for _, span in collector.spans()]
    assert [span.name for span in spans] == ["engine.queue", "engine.images"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {span.parent_span_id.hex() for span in spans} == {PARENT}
    assert [round((s.end_time_unix_nano - s.start_time_unix_nano) / 1e9, 3) for s in spans] == [0.5, 1.5]
