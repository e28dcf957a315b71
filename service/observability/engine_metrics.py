"""Metrics that are the engine's and the store's own counts, shown as they are at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.figures import ChainStats
from engine.messages import EngineStatus
from store.types import StoreStats, TierStats


class EngineCollector(Collector):
    """Give it what is known with `update`; until then it shows nothing."""

    def __init__(self) -> None:
        self._status: EngineStatus | None = None
        self._stats: StoreStats | None = None

    def update(self, status: EngineStatus, stats: StoreStats | None) -> None:
        """`stats` None: the store did not answer, and what it said last stays."""
        self._status = status
        self._stats = stats or self._stats

    def collect(self) -> Iterable[Metric]:
        if self._status is not None:
            yield from _engine(self._status)
        if self._stats is not None:
            yield from _store(self._stats)
            yield from _tiers([self._stats.decoded, *self._stats.tiers])


def _engine(status: EngineStatus) -> Iterator[Metric]:
    yield _gauge("num_requests_waiting", "Requests waiting in the engine.", status.waiting)
    yield _gauge("num_requests_running", "Requests the engine works on.", status.running)
    yield _gauge("engine_ready", "1 if the engine takes requests.", status.ready)
    yield _gauge("engine_progress_age_seconds", "Since the worker last did a step.", status.progress_seconds)
    yield _gauge("engine_degraded", "Number of things that are wrong with the engine.", len(status.degraded))
    shadow = status.shadow
    yield _counter("shadow_checks", "Requests that also ran by full prefill.", shadow.checked)
    yield _counter("shadow_agreements", "Of those, same most likely first token.", shadow.agreed)
    yield _counter("shadow_kl_nats", "Sum of their divergence at the first token.", shadow.kl_sum)
    yield from _chains(status.chains)


def _chains(chains: ChainStats) -> Iterator[Metric]:
    yield _gauge("chain_segments", "Segments of chains held.", chains.segments)
    yield _gauge("chain_bytes", "Bytes of chains held.", chains.bytes)
    yield _gauge("chain_bytes_budget", "Bytes that chains may hold.", chains.bytes_budget)
    yield _gauge("chain_leases", "Segments about to be read.", chains.leases)
    yield _counter("chain_requests", "Requests that looked for a chain.", chains.requests)
    yield _counter("chain_matches", "Of those, requests that found one.", chains.matched)
    yield _counter("chain_finished", "Chains that became exact in idle time.", chains.finished)
    yield _counter("chain_refined_rows", "Rows computed for that.", chains.refined_rows)
    evicted = CounterMetricFamily(
        "conduit_chain_evictions", "Segments dropped, by reason.", labels=["reason"]
    )
    for reason, count in chains.evictions.items():
        evicted.add_metric([reason], count)
    yield evicted
    yield _counter("chain_loaded", "Segments that came from a tier.", chains.loaded)
    lost = CounterMetricFamily(
        "conduit_chain_lost", "Records of chains that could not be used, by reason.", labels=["reason"]
    )
    for reason, count in chains.lost.items():
        lost.add_metric([reason], count)
    yield lost


def _store(stats: StoreStats) -> Iterator[Metric]:
    yield _counter("store_compiles", "Images compiled.", stats.compiles)
    yield _counter("store_compiles_joined", "Requests that waited for a compile under way.", stats.joined)
    yield _gauge("store_leases", "Entries in use.", stats.leases)
    yield _gauge("store_write_queue", "Records that wait to be written.", stats.write_queue)
    yield _gauge("store_write_queue_bytes", "Bytes that wait to be written.", stats.write_queue_bytes)
    yield _gauge("store_degraded", "Number of things that are wrong with the store.", len(stats.degraded))
    dropped = CounterMetricFamily(
        "conduit_store_writes_dropped", "Records not written, by reason.", labels=["reason"]
    )
    for reason, count in stats.writes_dropped.items():
        dropped.add_metric([reason], count)
    yield dropped
    yield from _chain_records(stats)


def _chain_records(stats: StoreStats) -> Iterator[Metric]:
    """Of each state where there are any, in memory (`chain`) and in each tier."""
    for field in ("entries", "bytes"):
        name = f"conduit_store_chain_{field}"
        metric = GaugeMetricFamily(name, f"Segments of chains held: {field}.", labels=["tier", "state"])
        for tier, states in stats.chains_by_tier.items():
            for state, held in states.items():
                metric.add_metric([tier, state], getattr(held, field))
        yield metric


def _tiers(tiers: list[TierStats]) -> Iterator[Metric]:
    yield _by_tier(GaugeMetricFamily, "store_tier_available", "1 if the tier answers.", tiers, "available")
    yield _by_tier(GaugeMetricFamily, "store_entries", "Entries held.", tiers, "entries")
    for kind in ("logical", "physical", "budget"):
        yield _by_tier(GaugeMetricFamily, f"store_bytes_{kind}", f"Bytes: {kind}.", tiers, f"bytes_{kind}")
    counted = {
        "store_hits": ("Entries found.", "hits"),
        "store_read_bytes": ("Bytes read.", "bytes_read"),
        "store_written_bytes": ("Bytes written.", "bytes_written"),
        "store_read_seconds": ("Time spent reading.", "read_seconds"),
        "store_write_seconds": ("Time spent writing.", "write_seconds"),
    }
    for name, (text, field) in counted.items():
        yield _by_tier(CounterMetricFamily, name, text, tiers, field)
    for kind, text in (
        ("misses", "Entries not found"),
        ("evictions", "Entries removed"),
        ("rejected", "Records not served"),
    ):
        yield _by_reason(
            f"store_{kind}", f"{text}, by reason.", {tier.name: getattr(tier, kind) for tier in tiers}
        )


def _by_tier(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    tiers: list[TierStats],
    field: str,
) -> Metric:
    metric = family(f"conduit_{name}", text, labels=["tier"])
    for tier in tiers:
        metric.add_metric([tier.name], float(getattr(tier, field)))
    return metric


def _by_reason(name: str, text: str, counts: Mapping[str, Mapping[str, int]]) -> Metric:
    metric = CounterMetricFamily(f"conduit_{name}", text, labels=["tier", "reason"])
    for tier, reasons in counts.items():
        for reason, count in reasons.items():
            metric.add_metric([tier, reason], count)
    return metric


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"conduit_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"conduit_{name}", text, value=value)
