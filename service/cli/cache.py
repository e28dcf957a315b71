"""The operator's verbs at the terminal: `cache stats`, `ls`, `rm`, `evict`, `clear`, `pin`, `unpin`, `quota`, `verify`,
`warm`."""

from __future__ import annotations

import argparse
import time
from typing import Any, Final, TextIO, TypeAlias
from urllib.parse import quote

from service.cli.chat import image_url
from service.cli.client import CommandFailed, Service
from service.cli.report import binary, entry_lines, quota_lines, stats_lines

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_LIFT: Final = "none"
_SIZE_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def add_cache(cache: Verbs) -> None:
    """The verbs of `cache` and their options."""
    _add_looking(cache)
    _add_removing(cache)
    _add_keeping(cache)
    warming = cache.add_parser("warm", help="compute images before they are asked about")
    warming.add_argument("images", nargs="+", metavar="IMAGE", help="URL or file")
    warming.add_argument("--tenant")
    warming.add_argument("--salt")
    warming.set_defaults(run=_warm)


def _add_looking(cache: Verbs) -> None:
    cache.add_parser("stats", help="what each tier holds").set_defaults(run=_stats)
    listing = cache.add_parser("ls", help="list entries")
    _add_filter(listing)
    listing.set_defaults(run=_ls)
    scrub = cache.add_parser("verify", help="read and check every record, remove damaged ones")
    scrub.set_defaults(run=_verify)


def _add_removing(cache: Verbs) -> None:
    removal = cache.add_parser("rm", help="remove entries by key")
    removal.add_argument("keys", nargs="+", metavar="KEY")
    removal.set_defaults(run=_rm)
    eviction = cache.add_parser("evict", help="remove the least recently used of what matches")
    _add_filter(eviction)
    eviction.add_argument("--bytes", type=size, help="stop when so much is freed")
    eviction.add_argument("--all", action="store_true", help="everything, if nothing else narrows it")
    eviction.add_argument("--dry-run", action="store_true")
    eviction.set_defaults(run=_evict)
    clearing = cache.add_parser("clear", help="remove everything that is not in use or pinned")
    clearing.add_argument("--tenant")
    clearing.add_argument("--include-pinned", action="store_true")
    clearing.set_defaults(run=_clear)


def _add_keeping(cache: Verbs) -> None:
    pinning = cache.add_parser("pin", help="keep entries by key: evicted last for --ttl, without it never")
    pinning.add_argument("keys", nargs="+", metavar="KEY")
    pinning.add_argument("--ttl", type=float, metavar="SECONDS")
    pinning.set_defaults(run=_pin)
    unpinning = cache.add_parser("unpin", help="let entries go as others do")
    unpinning.add_argument("keys", nargs="+", metavar="KEY")
    unpinning.set_defaults(run=_unpin)
    quota = cache.add_parser("quota", help="show what tenants may hold; with BYTES, set it for one")
    quota.add_argument("tenant", nargs="?")
    quota.add_argument("bytes", nargs="?", type=_quota_size, help=f"in each tier, or '{_LIFT}' to lift it")
    quota.set_defaults(run=_quota)


def _add_filter(verb: argparse.ArgumentParser) -> None:
    for name in ("tenant", "model", "tier"):
        verb.add_argument(f"--{name}")
    verb.add_argument("--older-than", type=float, metavar="SECONDS", help="since last use")
    verb.add_argument("--min-bytes", type=size)


def _stats(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    print(*stats_lines(service.call("GET", "/v1/cache/stats")), sep="\n", file=out)


def _ls(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    query: dict[str, Any] = {**_filter(options), "limit": 200}
    now, header = time.time(), True
    while query.get("cursor", "") is not None:
        page = service.call("GET", "/v1/cache/entries", params=query)
        print(*entry_lines(page["entries"], now, header=header), sep="\n", file=out)
        query["cursor"], header = page["cursor"], False


def _rm(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    for key in options.keys:
        service.call("DELETE", f"/v1/cache/entries/{key}")
        print(f"removed {key}", file=out)


def _evict(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    body = {**_filter(options), "all": options.all, "dry_run": options.dry_run}
    if options.bytes is not None:
        body["bytes"] = options.bytes
    result = service.call("POST", "/v1/cache/evict", json=body)
    verb = "would remove" if result["dry_run"] else "removed"
    print(f"{verb} {len(result['keys'])} entries, {binary(result['bytes'])}", file=out)
    if result["skipped_leased"]:
        print(f"left {result['skipped_leased']} that are in use", file=out)


def _clear(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    body = {"tenant": options.tenant, "include_pinned": options.include_pinned}
    result = service.call("POST", "/v1/cache/clear", json=body)
    print(f"removed {len(result['keys'])} entries, {binary(result['bytes'])}", file=out)
    print(f"left {result['skipped_leased']} in use, {result['skipped_pinned']} pinned", file=out)


def _pin(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    kind: dict[str, Any] = {"hard": True} if options.ttl is None else {"ttl": options.ttl}
    for key in options.keys:
        service.call("POST", f"/v1/cache/pins/{key}", json=kind)
        print(f"pinned {key}", file=out)


def _unpin(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    for key in options.keys:
        service.call("DELETE", f"/v1/cache/pins/{key}")
        print(f"unpinned {key}", file=out)


def _quota(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    if options.tenant is None:
        quotas = service.call("GET", "/v1/cache/quotas")["quotas"]
        print(*quota_lines(quotas), sep="\n", file=out)
        return
    path = f"/v1/cache/quotas/{quote(options.tenant, safe='')}"
    if options.bytes is None:
        print(*quota_lines([service.call("GET", path)]), sep="\n", file=out)
    elif options.bytes == _LIFT:
        service.call("DELETE", path)
        print(f"{options.tenant} has no quota", file=out)
    else:
        service.call("PUT", path, json={"bytes": options.bytes})
        print(f"{options.tenant} may hold {binary(options.bytes)} in each tier", file=out)


def _verify(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    for report in service.stream("/v1/cache/verify", {}):
        if not report["done"]:  # counts are those of all tiers so far
            print(f"{report['tier']}: {report['checked']} of {report['total']} records checked", file=out)
            continue
        removed = ", ".join(f"{count} {reason}" for reason, count in report["removed"].items()) or "none"
        print(f"{report['checked']} records checked, removed: {removed}", file=out)
        for tier in report["failed"]:
            print(f"could not be read to the end: {tier}", file=out)


def _warm(service: Service, options: argparse.Namespace, out: TextIO) -> None:
    body = {"images": [image_url(image) for image in options.images], "tenant": options.tenant}
    failed = 0
    for report in service.stream("/v1/cache/warm", {**body, "salt": options.salt}):
        name = options.images[report["image"]]
        if "failed" in report:
            failed += 1
            print(f"{name}: {report['failed']['message']}", file=out)
        else:
            print(f"{name}: {report['outcome']} {report['key']}", file=out)
    if failed:
        raise CommandFailed(f"{failed} of {len(options.images)} images were not stored")


def _filter(options: argparse.Namespace) -> dict[str, Any]:
    names = ("tenant", "model", "tier", "older_than", "min_bytes")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _quota_size(text: str) -> int | str:
    return _LIFT if text == _LIFT else size(text)


def size(text: str) -> int:
    """`500`, `64K`, `1.5GiB` in bytes."""
    number = text.lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:].isalpha() else ""
    try:
        return int(float(number.removesuffix(unit)) * _SIZE_UNITS[unit])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"not a size: {text}") from None
