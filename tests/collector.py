"""An OpenTelemetry collector on loopback that keeps what it is sent. Needs the extra `otel`."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Collector:
    endpoint: str
    bodies: list[bytes] = field(default_factory=list)

    def spans(self) -> list[tuple[str, Any]]:
        """(service, span) of everything that came so far."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return [
            (_service(sent.resource), span)
            for body in self.bodies
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in sent.scope_spans
            for span in scope.spans
        ]


def _service(resource: Any) -> str:
    (name,) = (one.value.string_value for one in resource.attributes if one.key == "service.name")
    return str(name)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A `Collector` in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            zipped = self.headers.get("content-encoding") == "gzip"
            collector.bodies.append(gzip.decompress(data) if zipped else data)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
