"""What an operator sees at `/metrics`. One registry an app: nothing is shared between two apps of one
process."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.messages import EngineStatus, Finished
from store.types import StoreStats, TierStats

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_LATENCY: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_GAP: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_IMAGE_WORK: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters and histograms of the HTTP side, and gauges set from the engine and the store when they are
    read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests()
        self._images()
        self._store()

    def _requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.requests = counter(
            "requests", "Chat requests by outcome: ok, client_gone, or the error code.", "outcome"
        )
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
        self.waiting = self._gauge("num_requests_waiting", "Requests waiting in the engine.")
        self.running = self._gauge("num_requests_running", "Requests the engine works on.")
        self.ready = self._gauge("engine_ready", "1 if the engine takes requests.")
        self.progress = self._gauge(
            "engine_progress_age_seconds", "Since the worker last finished a step or was idle."
        )

    def _images(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.fetch = histogram("image_fetch_seconds", "Download of one image.", _IMAGE_WORK)
        self.decode = histogram(
            "image_decode_seconds", "Waiting for a thread and decoding one image.", _IMAGE_WORK
        )
        self.not_modified = counter("image_not_modified", "Known URLs whose host said they are unchanged.")
        self.image_failures = counter("image_failures", "Images refused, by error code.", "reason")
        self.lookups = counter("image_lookups", "Images looked up in the store, by outcome.", "outcome")
        self.hits = counter("image_hits", "Images found in the store, by tier.", "tier")
        self.visual_tokens = counter(
            "visual_tokens", "Visual tokens: reused as stored, or refreshed.", "kind"
        )
        self.cached_tokens = counter("prompt_cached_tokens", "Prompt tokens whose KV was reused.")
        self.fallbacks = counter(
            "reuse_fallbacks", "Requests that ran as full prefill although reuse was asked for."
        )

    def _store(self) -> None:
        self.tier_bytes = self._gauge(
            "store_bytes", "Bytes of a tier: logical, physical, budget.", "tier", "kind"
        )
        self.tier_entries = self._gauge("store_entries", "Entries of a tier.", "tier")
        self.tier_up = self._gauge("store_tier_available", "1 if a tier answers.", "tier")
        self.tier_events = self._gauge(
            "store_events", "Counts since start, by tier, kind and reason.", "tier", "kind", "reason"
        )
        self.store_compiles = self._gauge("store_compiles", "Images compiled since start.")
        self.store_joined = self._gauge(
            "store_compiles_joined", "Requests that waited for a compile already under way."
        )
        self.store_leases = self._gauge("store_leases", "Entries in use.")
        self.write_queue = self._gauge("store_write_queue_bytes", "Bytes that wait to be written.")
        self.store_degraded = self._gauge("store_degraded", "Number of things that are wrong with the store.")

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
        self.visual_tokens.labels("refreshed").inc(event.report.refreshed)
        if event.report.fallback is not None:
            self.fallbacks.inc()
        for image in event.report.images:
            self.lookups.labels(image.outcome).inc()
            if image.outcome == "hit":
                self.hits.labels(image.tier or "unknown").inc()

    def render(self, status: EngineStatus, stats: StoreStats | None) -> bytes:
        """The text that Prometheus scrapes. `stats` None: the store did not answer, its gauges stay as they
        were."""
        self.waiting.set(status.waiting)
        self.running.set(status.running)
        self.ready.set(status.ready)
        self.progress.set(status.progress_seconds)
        if stats is not None:
            self._set_store(stats)
        return generate_latest(self.registry)

    def _set_store(self, stats: StoreStats) -> None:
        self.store_compiles.set(stats.compiles)
        self.store_joined.set(stats.joined)
        self.store_leases.set(stats.leases)
        self.write_queue.set(stats.write_queue_bytes)
        self.store_degraded.set(len(stats.degraded))
        for tier in (stats.decoded, *stats.tiers):
            self._set_tier(tier)

    def _set_tier(self, tier: TierStats) -> None:
        self.tier_up.labels(tier.name).set(tier.available)
        self.tier_entries.labels(tier.name).set(tier.entries)
        for kind, size in (
            ("logical", tier.bytes_logical),
            ("physical", tier.bytes_physical),
            ("budget", tier.bytes_budget),
        ):
            self.tier_bytes.labels(tier.name, kind).set(size)
        self.tier_events.labels(tier.name, "hit", "").set(tier.hits)
        for kind, counts in (
            ("miss", tier.misses),
            ("eviction", tier.evictions),
            ("rejected", tier.rejected),
        ):
            for reason, count in counts.items():
                self.tier_events.labels(tier.name, kind, reason).set(count)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"conduit_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"conduit_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"conduit_{name}", text, buckets=buckets, registry=self.registry)
