"""Which records the server holds, when and how often they were used; kept beside them, and made anew from them.

    vkv:{index}:used      sorted set: digest -> last use, seconds since the epoch
    vkv:{index}:hits      sorted set: digest -> uses

The index saves asking for every record. It may be wrong for a while: servers evict its keys like any other, people
delete keys by hand, writers die between two commands. So it carries a mark that whoever begins it anew must set, and
is compared with the records from time to time. What lies under our names and is no record then gets a minute to live.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from store.errors import Rejected
from store.records.header import Manifest, parse
from store.residency.counters import TierCounters
from store.residency.index import Index, Row
from store.tiers.redis.link import RedisLink, WrongType, translate
from store.tiers.redis.remote import DRAFT_SECONDS, MANIFEST, manifest_of, record_bytes, record_key

T = TypeVar("T")

USED = "vkv:{index}:used"
HITS = "vkv:{index}:hits"
_WHOLE = b"whole"
_OURS = "vkv:{*"
_RECORD = re.compile(rb"vkv:\{([0-9a-f]{64})\}")
_SCAN_COUNT = 1000
_WINDOW = 256


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the server says of a record: the field with its manifest (None: it is not there), or the error in its place;
    its scores in the index."""

    digest: bytes
    head: Any
    used: float | None
    hits: float | None

    @property
    def listed(self) -> bool:
        return self.used is not None or self.hits is not None


class SharedIndex:
    """The server's index, and `rows`, what this process knows of it. Thread-safe."""

    def __init__(self, link: RedisLink, counters: TierCounters) -> None:
        self.rows = Index()
        self._link = link
        self._counters = counters
        self._uses: Counter[bytes] = Counter()
        self._unknown: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        """As used now."""
        self.rows.add(row)
        self._list([self.rows.get(row.digest) or row])

    def remove(self, digest: bytes) -> None:
        self.rows.remove(digest)
        self._unlist([digest])

    def touch(self, digest: bytes, when: float) -> None:
        known = self.rows.touch(digest, when) is not None
        if known or self._link.available:
            with self._lock:
                self._uses[digest] += 1
                self._unknown |= {} if known else {digest: when}

    def write_uses(self) -> None:
        """A record that was removed meanwhile does not come back into the index."""
        with self._lock:
            uses, self._uses = self._uses, Counter()
            used, self._unknown = self._unknown, {}
        changed = {row.digest: row.last_used for row in self.rows.take_used()}
        used |= {digest: when for digest, when in changed.items() if digest in uses}
        # The others lay in the future, as a clock was wrong, here or on another machine.
        moved = {digest: when for digest, when in changed.items() if digest not in uses}

        def write(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            if used:
                pipeline.zadd(USED, used, xx=True, gt=True)
            if moved:
                pipeline.zadd(USED, moved, xx=True)
            for digest, count in uses.items():
                pipeline.zadd(HITS, {digest: count}, xx=True, incr=True)
            pipeline.execute()

        if used or moved:
            self._on_index(write)

    def look(self, digest: bytes) -> Row | None:
        """One row, asked for if it is not known."""
        known = self.rows.get(digest)
        return known or next(iter(self._fetch([digest])), None)

    def refresh(self) -> None:
        """Have `rows` agree with the server's index, which other machines change."""
        used = self._scores()
        if _WHOLE not in used:
            self.rebuild()
            used = self._scores()
        used.pop(_WHOLE, None)
        known = [row for digest in used if (row := self.rows.get(digest)) is not None]
        fresh = self._fetch(used.keys() - {row.digest for row in known})
        seen = [replace(row, last_used=_finite(used[row.digest], row.last_used)) for row in known]
        self.rows.reset([*seen, *fresh])

    def rebuild(self) -> None:
        """Look at every key of ours in the server."""
        listed = self._scores().keys()
        found = set()
        for key in self._link.each(lambda client: client.scan_iter(match=_OURS, count=_SCAN_COUNT)):
            record = _RECORD.fullmatch(key)
            if record:
                found.add(bytes.fromhex(record[1].decode()))
            elif key not in (USED.encode(), HITS.encode()):
                self._give_a_minute(key)
        self._unlist(listed - found - {_WHOLE})
        missing = found - listed
        rows = self._fetch(missing)
        self._list(rows)
        for digest in missing - {row.digest for row in rows}:
            self._give_a_minute(record_key(digest))
        counted = dict.fromkeys(found, 0)
        if counted:
            self._on_index(lambda client: client.zadd(HITS, counted, nx=True))
        self._on_index(lambda client: client.zadd(USED, {_WHOLE: 0}))

    def _give_a_minute(self, key: bytes | str) -> None:
        """What has a time to live is being written."""

        def give(client: Any) -> None:
            if client.ttl(key) == -1:
                client.expire(key, DRAFT_SECONDS)

        self._link.run(give)

    def _scores(self) -> dict[bytes, float]:
        return dict(self._on_index(lambda client: client.zrange(USED, 0, -1, withscores=True)))

    def _list(self, rows: Iterable[Row]) -> None:
        used = {row.digest: row.last_used for row in rows}

        def write(client: Any) -> None:
            client.zadd(USED, used)
            client.zadd(HITS, dict.fromkeys(used, 0))

        if used:
            self._on_index(write)

    def _unlist(self, members: Iterable[bytes]) -> None:
        gone = list(members)

        def write(client: Any) -> None:
            client.zrem(USED, *gone)
            client.zrem(HITS, *gone)

        if gone:
            self._on_index(write)

    def _on_index(self, work: Callable[[Any], T]) -> T:
        """`work`, again if a key of the index was of another type. Such a key is removed, and the next refresh makes
        the index anew."""
        try:
            return self._link.run(work)
        except WrongType:
            self._link.run(_remove_foreign)
            return self._link.run(work)

    def _fetch(self, digests: Iterable[bytes]) -> list[Row]:
        """Rows of records as they are in the server. What is not there leaves the index, what is damaged the
        server."""
        wanted = list(digests)
        found: list[Row] = []
        for first in range(0, len(wanted), _WINDOW):
            asked = self._ask(wanted[first : first + _WINDOW])
            rows = [self._row(one) for one in asked]
            gone = [one.digest for one, row in zip(asked, rows, strict=True) if row is None and one.listed]
            self._unlist(gone)
            found += [row for row in rows if row is not None]
        return found

    def _ask(self, digests: list[bytes]) -> list[_Asked]:
        def ask(client: Any) -> list[_Asked]:
            pipeline = client.pipeline(transaction=False)
            for digest in digests:
                pipeline.hget(record_key(digest), MANIFEST)
            heads = pipeline.execute(raise_on_error=False)
            scores = client.zmscore(USED, digests), client.zmscore(HITS, digests)
            return [_Asked(*one) for one in zip(digests, heads, *scores, strict=True)]

        return self._on_index(ask)

    def _row(self, asked: _Asked) -> Row | None:
        if asked.head is None:
            return None
        try:
            manifest = _manifest(asked)
        except Rejected as error:
            self._counters.rejected(error.reason)
            self._link.run(lambda client: client.unlink(record_key(asked.digest)))
            return None
        size = record_bytes(asked.head, manifest)
        last_used = _finite(asked.used, manifest.info.created)
        return Row(asked.digest, manifest.info, size, last_used, max(int(_finite(asked.hits, 0)), 0))


def _manifest(asked: _Asked) -> Manifest:
    """Raises Rejected, and TierUnavailable for an error that is not about the record."""
    if isinstance(asked.head, Exception):
        error = translate(asked.head)
        if not isinstance(error, WrongType):
            raise error from asked.head
        raise Rejected("corrupt", "a key of another type")
    manifest = parse(manifest_of(asked.head))
    if manifest.digest != asked.digest:
        raise Rejected("corrupt", "record of another key")
    return manifest


def _finite(number: float | None, instead: float) -> float:
    """Anybody may write an infinite score."""
    return number if number is not None and math.isfinite(number) else instead


def _remove_foreign(client: Any) -> None:
    for key in (USED, HITS):
        if client.type(key) != b"zset":
            client.unlink(key)
