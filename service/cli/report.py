"""How the command shows reports, figures and entries: texts, and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

TIERS: Final = ("tier", "entries", "logical", "physical", "budget", "hits", "misses", "evicted", "rejected")
ENTRIES: Final = ("key", "tenant", "model", "size", "pixels", "tokens", "tiers", "hits", "used", "pinned")
QUOTAS: Final = ("tenant", "quota", "held")


def report_line(report: Mapping[str, Any], first_text: float | None) -> str:
    """A `kv_report` in all. `first_text` is what the client saw, in seconds."""
    timings = report["timings"]
    ratio = "" if report["policy"] == "full" else f" r={report['refresh_ratio']:g}"
    total = report["visual_tokens"]
    parts = [
        f"{report['policy']}{ratio}",
        f"of {total} visual tokens {report['reused_tokens']} reused, {report['compiled_tokens']} compiled, "
        f"{report['refreshed_tokens']} refreshed, {report['chained_tokens']} from a chain",
        f"first token {timings['ttft_ms']:.1f} ms",
    ]
    if first_text is not None:
        parts.append(f"here after {first_text * 1000:.1f} ms")
    if report["fallback"]:
        parts.append(f"ran as full prefill: {report['fallback']}")
    return "-- " + " | ".join(parts)


def report_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """What happened to each image."""
    return [["  ", *_image_row(i, image)] for i, image in enumerate(report["images"], start=1)]


def _image_row(number: int, image: Mapping[str, Any]) -> list[str]:
    took = f"loaded in {image['load_ms']:.1f} ms" if image["load_ms"] else "ready"
    if image["compile_ms"]:
        took = f"compiled in {image['compile_ms']:.1f} ms"
    refreshed = "exact" if image["exact"] else f"{image['refreshed']}/{image['tokens']} refreshed"
    return [
        f"image {number}",
        image["key"],
        image["outcome"],
        image["tier"] or "-",
        refreshed,
        binary(image["bytes"]),
        took,
        image["reason"],
    ]


def tier_rows(stats: Mapping[str, Any]) -> list[list[str]]:
    """What each tier holds."""
    return [_tier_row(tier) for tier in (stats["decoded"], *stats["tiers"])]


def stats_lines(stats: Mapping[str, Any]) -> list[str]:
    """What is said below the tiers, and what is wrong if anything is."""
    queue = f"{stats['write_queue']} writes waiting ({binary(stats['write_queue_bytes'])})"
    joined = f"{stats['compiles']} images compiled, {stats['joined']} requests joined a compile under way"
    degraded = [f"degraded: {reason}" for reason in stats["degraded"]]
    return [f"{joined}; {queue}; {stats['leases']} entries in use", *degraded]


def _tier_row(tier: Mapping[str, Any]) -> list[str]:
    sizes = [binary(tier[f"bytes_{kind}"]) for kind in ("logical", "physical", "budget")]
    counts = [str(sum(tier[kind].values())) for kind in ("misses", "evictions", "rejected")]
    name = tier["name"] if tier["available"] else f"{tier['name']} (down)"
    return [name, str(tier["entries"]), *sizes, str(tier["hits"]), *counts]


def entry_rows(entries: Sequence[Mapping[str, Any]], now: float) -> list[list[str]]:
    """Entries under `ENTRIES`. `now` is in seconds since the epoch."""
    return [
        [
            entry["key"],
            entry["tenant"],
            entry["model"],
            binary(entry["bytes"]),
            f"{entry['width']}x{entry['height']}" if entry["width"] else "-",
            str(entry["tokens"]),
            "+".join(entry["tiers"]),
            str(entry["hits"]),
            f"{age(now - entry['last_used'])} ago",
            entry["pinned"] or "-",
        ]
        for entry in entries
    ]


def quota_rows(quotas: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What tenants may hold in each tier, and what they hold."""
    return [[quota["tenant"], binary(quota["bytes"]), binary(quota["held"])] for quota in quotas]


def binary(size: int) -> str:
    """Bytes with a binary unit."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def age(seconds: float) -> str:
    """Seconds in the largest unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
