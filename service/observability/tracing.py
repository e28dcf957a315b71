"""The HTTP side's spans of a request. They go nowhere until the composition root configures an exporter.

The request's span is a child of the caller's (`traceparent` header), and current while the engine is asked,
so that the engine's spans become its children.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TRACER_NAME: Final = "conduit.service"
_PROPAGATOR: Final = TraceContextTextMapPropagator()


@contextmanager
def request_span(headers: Mapping[str, str], request_id: str) -> Iterator[trace.Span]:
    """The span of one chat request, its stream included."""
    parent = _PROPAGATOR.extract({"traceparent": headers.get("traceparent", "")})
    tracer = trace.get_tracer(_TRACER_NAME)
    span = tracer.start_span("chat", parent, trace.SpanKind.SERVER, {"request.id": request_id})
    # Errors are recorded by their code; an exception's text could hold what a log may and a trace must not.
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield span


@contextmanager
def phase_span(name: str) -> Iterator[None]:
    """A phase of the current request."""
    tracer = trace.get_tracer(_TRACER_NAME)
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False):
        yield
