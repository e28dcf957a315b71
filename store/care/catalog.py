"""The operator's list of entries, merged from what each tier holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from store.records.keys import CHAIN, owner
from store.residency.holds import Holds
from store.residency.index import Row
from store.types import EntryFilter, EntryInfo, Held


def entry_info(held: Sequence[tuple[str, Row]], holds: Holds) -> EntryInfo:
    """One entry from its rows, fastest tier first; size and facts come from the slowest, which holds the
    record."""
    row = held[-1][1]
    info = row.info
    return EntryInfo(
        key=row.digest.hex(),
        kind=info.kind,
        namespace=info.namespace,
        tenant=info.tenant,
        model=info.model,
        codec=info.codec,
        tokens=info.tokens,
        width=info.width,
        height=info.height,
        bytes=row.bytes,
        tiers=tuple(name for name, _ in held),
        created=info.created,
        last_used=max(row.last_used for _, row in held),
        hits=max(row.hits for _, row in held),
        leased=holds.leased(row.digest),
        model_digest=info.model_digest,
        pinned=holds.pinned(row.digest),
        state=info.state,
    )


def merge(tiers: Iterable[tuple[str, Iterable[Row]]], holds: Holds) -> list[EntryInfo]:
    """Every entry once, by key."""
    held: dict[bytes, list[tuple[str, Row]]] = defaultdict(list)
    for name, rows in tiers:
        for row in rows:
            held[row.digest].append((name, row))
    return [entry_info(held[digest], holds) for digest in sorted(held)]


def matches(info: EntryInfo, select: EntryFilter, now: float) -> bool:
    return (
        (select.tenant is None or select.tenant in (info.tenant, owner(info.tenant)))
        and (select.model is None or info.model == select.model)
        and (select.tier is None or select.tier in info.tiers)
        and (select.older_than is None or now - info.last_used >= select.older_than)
        and (select.min_bytes is None or info.bytes >= select.min_bytes)
        and (select.kind is None or info.kind == select.kind)
    )


def bytes_by(rows: Iterable[Row], what: Callable[[Row], str]) -> Mapping[str, int]:
    """Sum of record bytes by a property."""
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        totals[what(row)] += row.bytes
    return dict(totals)


def chains_by_tier(places: Iterable[tuple[str, Iterable[Row]]]) -> Mapping[str, Mapping[str, Held]]:
    """Segments of chains by place and state; places without any are left out."""
    held: dict[str, dict[str, Held]] = defaultdict(dict)
    for name, rows in places:
        for row in rows:
            if row.info.kind == CHAIN:
                before = held[name].get(row.info.state, Held(0, 0))
                held[name][row.info.state] = Held(before.entries + 1, before.bytes + row.bytes)
    return dict(held)
