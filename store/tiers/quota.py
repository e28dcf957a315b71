"""A tenant's limit: its own entries make room for its new ones, and nobody else's do. All parts of a tenant's space
count together: a caller must not escape the limit by a salt."""

from __future__ import annotations

from store.errors import TierFull
from store.records.keys import owner
from store.records.record import Record
from store.residency.eviction import HoldOf, Policy, choose
from store.tiers.protocol import Tier


def make_room(tier: Tier, record: Record, quota: int, when: float, policy: Policy, hold: HoldOf) -> None:
    """Evict from `tier` what the tenant of `record` holds beyond `quota` bytes less the record. Raises
    TierFull if it cannot fit, and TierError."""
    if record.nbytes > quota:
        raise TierFull("quota", f"{record.nbytes} bytes, quota {quota}")
    tenant = owner(record.manifest.info.tenant)
    rows = [row for row in tier.rows() if owner(row.info.tenant) == tenant and row.digest != record.digest]
    need = sum(row.bytes for row in rows) + record.nbytes - quota
    if need <= 0:
        return
    victims = choose(rows, need, policy, when, hold)
    if sum(row.bytes for row in victims) < need:
        raise TierFull("quota", "all that the tenant holds is in use or pinned")
    for row in victims:
        tier.delete(row.digest, "quota")
