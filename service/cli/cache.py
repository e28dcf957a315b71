"""The operator's commands: `cache stats`, `ls`, `rm`, `evict`, `clear`, `pin`, `unpin`, `quota`, `verify`, `warm`."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from service.cli.client import CommandFailed, Service
from service.cli.command import register
from service.cli.keys import full_keys, pages
from service.cli.options import Salt, Tenant, image_url, seconds, size
from service.cli.report import ENTRIES, QUOTAS, TIERS, binary, entry_rows, quota_rows, stats_lines, tier_rows
from service.cli.terminal import Terminal

_LIFT: Final = "none"

Keys = Annotated[
    list[str], typer.Argument(metavar="KEY", help="Whole, or its beginning where that is enough.")
]
Model = Annotated[str | None, typer.Option("--model")]
Tier = Annotated[str | None, typer.Option("--tier")]
OlderThan = Annotated[
    float | None, typer.Option("--older-than", parser=seconds, metavar="SECONDS", help="Since last use.")
]
MinBytes = Annotated[int | None, typer.Option("--min-bytes", parser=size, metavar="SIZE")]


def stats(service: Service, terminal: Terminal) -> None:
    """What each tier holds."""
    found = service.call("GET", "/v1/cache/stats")
    terminal.document(found)
    terminal.table(TIERS, tier_rows(found))
    for line in stats_lines(found):
        terminal.line(line)


def ls(
    service: Service,
    terminal: Terminal,
    tenant: Tenant = None,
    model: Model = None,
    tier: Tier = None,
    older_than: OlderThan = None,
    min_bytes: MinBytes = None,
) -> None:
    """List entries."""
    select = _given(tenant=tenant, model=model, tier=tier, older_than=older_than, min_bytes=min_bytes)
    entries = [entry for page in pages(service, select) for entry in page]
    terminal.document({"entries": entries})
    terminal.table(ENTRIES, entry_rows(entries, time.time()))


def rm(service: Service, terminal: Terminal, keys: Keys) -> None:
    """Remove entries by key."""
    for key in full_keys(service, keys):
        service.call("DELETE", f"/v1/cache/entries/{key}")
        terminal.document({"removed": key})
        terminal.line(f"removed {key}")


def evict(
    service: Service,
    terminal: Terminal,
    tenant: Tenant = None,
    model: Model = None,
    tier: Tier = None,
    older_than: OlderThan = None,
    min_bytes: MinBytes = None,
    free: Annotated[
        int | None, typer.Option("--bytes", parser=size, metavar="SIZE", help="Stop when so much is freed.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="If nothing else narrows it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove the least recently used of what matches."""
    select = _given(
        tenant=tenant, model=model, tier=tier, older_than=older_than, min_bytes=min_bytes, bytes=free
    )
    result = service.call("POST", "/v1/cache/evict", json={**select, "all": everything, "dry_run": dry_run})
    terminal.document(result)
    verb = "would remove" if result["dry_run"] else "removed"
    terminal.line(f"{verb} {len(result['keys'])} entries, {binary(result['bytes'])}")
    if result["skipped_leased"]:
        terminal.line(f"left {result['skipped_leased']} that are in use")


def clear(
    service: Service,
    terminal: Terminal,
    tenant: Tenant = None,
    include_pinned: Annotated[bool, typer.Option("--include-pinned")] = False,
) -> None:
    """Remove everything that is not in use or pinned."""
    body = {"tenant": tenant, "include_pinned": include_pinned}
    result = service.call("POST", "/v1/cache/clear", json=body)
    terminal.document(result)
    terminal.line(f"removed {len(result['keys'])} entries, {binary(result['bytes'])}")
    terminal.line(f"left {result['skipped_leased']} in use, {result['skipped_pinned']} pinned")


def pin(
    service: Service,
    terminal: Terminal,
    keys: Keys,
    ttl: Annotated[
        float | None, typer.Option(parser=seconds, metavar="SECONDS", help="Evicted last for so long.")
    ] = None,
) -> None:
    """Keep entries by key: evicted last for --ttl, without it never."""
    kind: dict[str, Any] = {"hard": True} if ttl is None else {"ttl": ttl}
    for key in full_keys(service, keys):
        service.call("POST", f"/v1/cache/pins/{key}", json=kind)
        terminal.document({"pinned": key, **kind})
        terminal.line(f"pinned {key}")


def unpin(service: Service, terminal: Terminal, keys: Keys) -> None:
    """Let entries go as others do."""
    for key in full_keys(service, keys):
        service.call("DELETE", f"/v1/cache/pins/{key}")
        terminal.document({"unpinned": key})
        terminal.line(f"unpinned {key}")


def quota(
    service: Service,
    terminal: Terminal,
    tenant: Annotated[str | None, typer.Argument()] = None,
    limit: Annotated[
        str | None, typer.Argument(metavar="BYTES", help=f"In each tier, or '{_LIFT}' to lift it.")
    ] = None,
) -> None:
    """Show what tenants may hold; with BYTES, set it for one."""
    path = f"/v1/cache/quotas/{quote(tenant or '', safe='')}"
    if limit is None:
        asked = service.call("GET", path if tenant else "/v1/cache/quotas")
        found = [asked] if tenant else asked["quotas"]
        terminal.document({"quotas": found})
        terminal.table(QUOTAS, quota_rows(found))
    elif limit == _LIFT:
        service.call("DELETE", path)
        terminal.document({"tenant": tenant, "bytes": None})
        terminal.line(f"{tenant} has no quota")
    else:
        body = {"bytes": size(limit)}
        service.call("PUT", path, json=body)
        terminal.document({"tenant": tenant, **body})
        terminal.line(f"{tenant} may hold {binary(body['bytes'])} in each tier")


def verify(service: Service, terminal: Terminal) -> None:
    """Read and check every record, remove damaged ones."""
    for report in service.stream("/v1/cache/verify", {}):
        terminal.document(report)
        if not report["done"]:  # counts are those of all tiers so far
            terminal.line(f"{report['tier']}: {report['checked']} of {report['total']} records checked")
            continue
        removed = ", ".join(f"{count} {reason}" for reason, count in report["removed"].items()) or "none"
        terminal.line(f"{report['checked']} records checked, removed: {removed}")
        for tier in report["failed"]:
            terminal.line(f"could not be read to the end: {tier}")


def warm(
    service: Service,
    terminal: Terminal,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="URL or file.")],
    tenant: Tenant = None,
    salt: Salt = None,
) -> None:
    """Compute images before they are asked about."""
    failed = 0
    body = {"images": [image_url(image) for image in images], "tenant": tenant, "salt": salt}
    for report in service.stream("/v1/cache/warm", body):
        name = images[report["image"]]
        terminal.document({"name": name, **report})
        if "failed" in report:
            failed += 1
            terminal.line(f"{name}: {report['failed']['message']}")
        else:
            terminal.line(f"{name}: {report['outcome']} {report['key']}")
    if failed:
        raise CommandFailed(f"{failed} of {len(images)} images were not stored", "not_stored")


def add_cache(app: typer.Typer) -> None:
    """Register them all."""
    for run in (stats, ls, rm, evict, clear, pin, unpin, quota, verify, warm):
        register(app, run.__name__, run)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
