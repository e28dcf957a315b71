"""What is remembered of one chat request: metrics, and one line in the log when it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from types import TracebackType

from opentelemetry.trace import Span

from engine.messages import Finished, Sampling
from service.errors import ServiceError
from service.http.disconnect import ClientGone
from service.observability.gen_ai import of_answer, of_request
from service.observability.metrics import Metrics

_log = logging.getLogger(__name__)


class RequestRecord:
    """Use as a context manager around the whole request, its stream included: leaving it writes the
    record."""

    def __init__(self, metrics: Metrics, span: Span, request_id: str, tenant: str) -> None:
        self._metrics = metrics
        self._span = span
        self._fields: dict[str, object] = {"request_id": request_id, "tenant": tenant}
        self._started = time.monotonic()
        self._last_text: float | None = None
        self._outcome = "internal_error"
        self._model = ""
        self.images_seconds = 0.0

    def asked(self, model: str, sampling: Sampling, answers: int) -> None:
        """What the request was understood to be."""
        self._model = model
        self._span.set_attributes(of_request(model, sampling, answers))

    def images_loaded(self, count: int) -> None:
        self.images_seconds = time.monotonic() - self._started
        self._fields |= {"images": count, "images_seconds": round(self.images_seconds, 6)}

    def text(self) -> None:
        """A piece of text came from the engine."""
        now = time.monotonic()
        if self._last_text is None:
            self._metrics.ttft.observe(now - self._started)
            self._fields["ttft_seconds"] = round(now - self._started, 6)
        else:
            self._metrics.itl.observe(now - self._last_text)
        self._last_text = now

    def finished(self, end: Finished) -> None:
        self._outcome = "ok"
        self._metrics.finished(end)
        self._fields |= {
            "policy": end.report.policy,
            "prompt_tokens": end.usage.prompt_tokens,
            "completion_tokens": end.usage.completion_tokens,
            "reused_tokens": end.report.reused,
            "compiled_tokens": end.report.compiled,
            "chained_tokens": end.report.chained,
            "refreshed_tokens": end.report.refreshed,
        }
        self._span.set_attributes(of_answer(self._model, end))
        self._span.set_attribute("visual_tokens.reused", end.report.reused)
        self._span.set_attribute("visual_tokens.chained", end.report.chained)
        self._span.set_attribute("visual_tokens.compiled", end.report.compiled)
        self._span.set_attribute("visual_tokens.refreshed", end.report.refreshed)

    def failed(self, code: str) -> None:
        self._outcome = code

    def __enter__(self) -> RequestRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ServiceError):
            self._outcome = error.code
        elif isinstance(error, ClientGone | asyncio.CancelledError):
            self._outcome = "client_gone"
            self._metrics.disconnects.inc()
        elif error is not None:
            self._outcome = "internal_error"
        seconds = time.monotonic() - self._started
        self._metrics.requests.labels(self._outcome).inc()
        self._metrics.e2e.observe(seconds)
        self._span.set_attribute("outcome", self._outcome)
        if self._outcome != "ok":
            self._span.set_attribute("error.type", self._outcome)
        _log.info("chat", extra={**self._fields, "outcome": self._outcome, "seconds": round(seconds, 6)})
