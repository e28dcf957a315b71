"""Reading everything to see whether it is still what was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from store.errors import Rejected, TierError
from store.records.buffers import BufferPool
from store.records.record import RecordReader
from store.tiers.protocol import Tier
from store.types import VerifyProgress


def scrub(tiers: Sequence[Tier], buffers: BufferPool) -> Iterator[VerifyProgress]:
    """Read and verify every record of every tier, a record at a time; what is damaged is removed. No recency,
    no hit counts. Records of other codecs are verified too: they are evictable, not damaged."""
    checked = total = nbytes = 0
    removed: Counter[str] = Counter()
    failed: list[str] = []
    name = ""
    for tier in tiers:
        name = tier.name
        try:
            rows = list(tier.rows())
            total += len(rows)
            for row in rows:
                reason = _fault(tier, row.digest, buffers)
                if reason:
                    tier.delete(row.digest)
                    removed[reason] += 1
                checked += 1
                nbytes += row.bytes
                yield VerifyProgress(name, checked, total, nbytes, dict(removed))
        except TierError as error:
            failed.append(f"{name}: {error}")
    yield VerifyProgress(name, checked, total, nbytes, dict(removed), tuple(failed), done=True)


def _fault(tier: Tier, digest: bytes, buffers: BufferPool) -> str:
    """Why the record must go, "" if it is sound or no longer there."""
    reader = RecordReader(digest, None, buffers)
    try:
        if tier.get(digest, reader, count=False):
            reader.record()
    except Rejected as error:
        return error.reason
    return ""
