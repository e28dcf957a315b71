"""What an operator sees at `/metrics`. One registry an app: two apps of one process share nothing."""

from __future__ import annotations

from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.messages import EngineStatus, Finished
from engine.reports import ImageOutcome
from service.errors import ERROR_TABLE
from service.observability.engine_metrics import EngineCollector
from store.types import StoreStats

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_LATENCY: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_GAP: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_IMAGE_WORK: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters and histograms of the HTTP side, beside what engine and store count themselves."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine = EngineCollector()
        self.registry.register(self._engine)
        ProcessCollector(registry=self.registry)  # memory, descriptors and CPU time of this process
        self._requests()
        self._images()
        self._files()

    def _requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.requests = counter(
            "requests", "Chat requests by outcome: ok, client_gone, or the error code.", "outcome"
        )
        # A series that begins with its first count has no rate yet: the first failures would raise no alert.
        for outcome in ("ok", *(code for code, kind in ERROR_TABLE.items() if kind.status >= 429)):
            self.requests.labels(outcome)
        self.disconnects = counter("client_disconnects", "Requests whose client left before the end.")
        self.ttft = histogram("time_to_first_token_seconds", "Request received to first text.", _LATENCY)
        self.itl = histogram(
            "inter_token_latency_seconds", "Between two pieces of text of one answer.", _TOKEN_GAP
        )
        self.e2e = histogram(
            "e2e_request_latency_seconds", "Request received to last byte of its answer.", _LATENCY
        )
        self.queue_time = histogram("request_queue_time_seconds", "Waiting in the engine.", _LATENCY)
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of answered requests.")
        self.completion_tokens = counter("generation_tokens", "Tokens generated.")

    def _images(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.fetch = histogram("image_fetch_seconds", "Download of one image.", _IMAGE_WORK)
        self.decode = histogram(
            "image_decode_seconds", "Waiting for a thread and decoding one image.", _IMAGE_WORK
        )
        self.not_modified = counter("image_not_modified", "Known URLs whose host said they are unchanged.")
        self.image_failures = counter("image_failures", "Images refused, by error code.", "reason")
        self.lookups = counter("image_lookups", "Images looked up in the store, by outcome.", "outcome")
        for outcome in get_args(ImageOutcome):
            self.lookups.labels(outcome)
        self.hits = counter("image_hits", "Images found in the store, by tier.", "tier")
        self.visual_tokens = counter(
            "visual_tokens", "Visual tokens: reused as stored, compiled, refreshed, or of a chain.", "kind"
        )
        self.chained_tokens = counter(
            "chained_tokens", "Prompt tokens, text too, whose KV came from a chain, by its quality.", "kind"
        )
        self.turn_tokens = counter(
            "turns_reused_tokens", "Text tokens behind an edit whose KV is an earlier history's."
        )
        self.cached_tokens = counter("prompt_cached_tokens", "Prompt tokens whose KV was reused.")
        self.fallbacks = counter(
            "reuse_fallbacks", "Requests that ran as full prefill although reuse was asked for."
        )

    def _files(self) -> None:
        self.uploads = self._counter("file_uploads", "Uploads by outcome: ok, or the error code.", "outcome")
        self.uploads.labels("ok")
        self.files_gone = self._counter("files_removed", "Uploaded files that went, by reason.", "reason")
        for reason in ("deleted", "expired", "damaged", "orphan"):
            self.files_gone.labels(reason)
        self.files = Gauge("conduit_files", "Uploaded files that are kept.", registry=self.registry)
        self.file_bytes = Gauge("conduit_file_bytes", "Bytes of uploaded files.", registry=self.registry)

    def files_held(self, count: int, nbytes: int) -> None:
        self.files.set(count)
        self.file_bytes.set(nbytes)

    def file_removed(self, reason: str) -> None:
        self.files_gone.labels(reason).inc()

    def image_fetched(self, seconds: float) -> None:
        self.fetch.observe(seconds)

    def image_not_modified(self) -> None:
        self.not_modified.inc()

    def image_decoded(self, seconds: float) -> None:
        self.decode.observe(seconds)

    def image_failed(self, code: str) -> None:
        self.image_failures.labels(code).inc()

    def finished(self, event: Finished) -> None:
        """Count what a finished request used and reused."""
        self.queue_time.observe(event.timings.queue)
        self.prompt_tokens.inc(event.usage.prompt_tokens)
        self.completion_tokens.inc(event.usage.completion_tokens)
        self.cached_tokens.inc(event.usage.cached_tokens)
        self.visual_tokens.labels("reused").inc(event.report.reused)
        self.visual_tokens.labels("chained").inc(event.report.chained)
        self.visual_tokens.labels("compiled").inc(event.report.compiled)
        self.visual_tokens.labels("refreshed").inc(event.report.refreshed)
        self.chained_tokens.labels("exact").inc(event.report.chained_exact)
        self.chained_tokens.labels("refreshed").inc(event.report.chained_refreshed)
        self.turn_tokens.inc(event.report.turns_reused)
        if event.report.fallback is not None:
            self.fallbacks.inc()
        for image in event.report.images:
            self.lookups.labels(image.outcome).inc()
            if image.outcome == "hit":
                self.hits.labels(image.tier or "unknown").inc()

    def render(self, status: EngineStatus, stats: StoreStats | None) -> bytes:
        """The text that Prometheus scrapes. `stats` None: the store did not answer, its part stays as it
        was."""
        self._engine.update(status, stats)
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"conduit_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"conduit_{name}", text, buckets=buckets, registry=self.registry)
