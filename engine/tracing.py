"""OpenTelemetry traces of one request across processes; nothing happens until `configure` is called.

The HTTP side's span travels with the request as a W3C `traceparent`; the worker adds what it did as children of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.errors import EngineError

_PROPAGATOR = TraceContextTextMapPropagator()


class TracingUnavailable(EngineError):
    code = "tracing_unavailable"


def configure(endpoint: str, service: str) -> None:
    """Send spans of this process to an OTLP/HTTP collector (`http://host:4318/v1/traces`). Raises `TracingUnavailable`
    where the optional packages are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable(
            "CONDUIT_OTLP_ENDPOINT needs more packages: pip install -r requirements-otel.lock"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    trace.set_tracer_provider(provider)


def current_traceparent() -> str | None:
    """The caller's span, to be sent along; None where nothing is traced."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def record_phases(
    traceparent: str | None,
    names: Sequence[str],
    marks: Sequence[float],
    attributes: dict[str, str | int | float],
) -> None:
    """One finished span for each phase between two marks (monotonic seconds), as children of the caller's span."""
    if traceparent is None:
        return
    context = _PROPAGATOR.extract({"traceparent": traceparent})
    offset = time.time() - time.monotonic()
    tracer = trace.get_tracer("conduit.engine")
    # One mark more than phases.
    for name, start, end in zip(names, marks, marks[1:], strict=False):
        span = tracer.start_span(
            name, context, start_time=_nanoseconds(start + offset), attributes=attributes
        )
        span.end(_nanoseconds(end + offset))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
