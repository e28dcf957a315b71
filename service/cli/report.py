"""How the terminal client shows reports, figures and entries: plain text, columns aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def report_lines(report: Mapping[str, Any], ttft_seconds: float | None) -> list[str]:
    """A `kv_report`: one line in all and one an image. `ttft_seconds` is what the client saw."""
    timings = report["timings"]
    ratio = "" if report["policy"] == "full" else f" r={report['refresh_ratio']:g}"
    total = report["visual_tokens"]
    parts = [
        f"{report['policy']}{ratio}",
        f"of {total} visual tokens {report['reused_tokens']} reused, {report['compiled_tokens']} compiled, "
        f"{report['refreshed_tokens']} refreshed, {report['chained_tokens']} from a chain",
        f"first token {timings['ttft_ms']:.1f} ms",
    ]
    if ttft_seconds is not None:
        parts.append(f"here after {ttft_seconds * 1000:.1f} ms")
    if report["fallback"]:
        parts.append(f"ran as full prefill: {report['fallback']}")
    rows = [_image_row(i, image) for i, image in enumerate(report["images"], start=1)]
    return ["-- " + " | ".join(parts), *(f"   {line}" for line in table(rows))]


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


def stats_lines(stats: Mapping[str, Any]) -> list[str]:
    """What each tier holds, and what is wrong if anything is."""
    header = ["tier", "entries", "logical", "physical", "budget", "hits", "misses", "evicted", "rejected"]
    rows = [_tier_row(tier) for tier in (stats["decoded"], *stats["tiers"])]
    queue = f"{stats['write_queue']} writes waiting ({binary(stats['write_queue_bytes'])})"
    joined = f"{stats['compiles']} images compiled, {stats['joined']} requests joined a compile under way"
    degraded = [f"degraded: {reason}" for reason in stats["degraded"]]
    return [*table([header, *rows]), f"{joined}; {queue}; {stats['leases']} entries in use", *degraded]


def _tier_row(tier: Mapping[str, Any]) -> list[str]:
    sizes = [binary(tier[f"bytes_{kind}"]) for kind in ("logical", "physical", "budget")]
    counts = [str(sum(tier[kind].values())) for kind in ("misses", "evictions", "rejected")]
    name = tier["name"] if tier["available"] else f"{tier['name']} (down)"
    return [name, str(tier["entries"]), *sizes, str(tier["hits"]), *counts]


def entry_lines(entries: Sequence[Mapping[str, Any]], now: float, header: bool) -> list[str]:
    """A page of entries. `now` is in seconds since the epoch."""
    names = ["key", "tenant", "model", "size", "pixels", "tokens", "tiers", "hits", "used", "pinned"]
    rows = [
        [
            entry["key"],
            entry["tenant"],
            entry["model"],
            binary(entry["bytes"]),
            f"{entry['width']}x{entry['height']}",
            str(entry["tokens"]),
            "+".join(entry["tiers"]),
            str(entry["hits"]),
            f"{age(now - entry['last_used'])} ago",
            entry["pinned"] or "-",
        ]
        for entry in entries
    ]
    return table([names, *rows] if header else rows)


def quota_lines(quotas: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tenants may hold in each tier, and what they hold."""
    rows = [[quota["tenant"], binary(quota["bytes"]), binary(quota["held"])] for quota in quotas]
    return table([["tenant", "quota", "held"], *rows])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


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
