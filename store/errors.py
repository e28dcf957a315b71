"""Everything that the store raises on purpose.

    StoreError
    ├── InvalidKey            a key field outside its range (also a ValueError)
    ├── InvalidSettings       store settings that cannot work (also a ValueError)
    ├── StoreClosed           used after close()
    ├── CodecError            an entry that a codec cannot encode or a payload it cannot decode
    ├── Rejected              a stored record that must not be served: outdated, corrupt or torn
    └── TierError             a tier that could not do what was asked; never reaches a request
        ├── TierUnavailable   cannot be reached or opened, or is broken
        └── TierFull          no room for this record; caching is skipped

Third-party exceptions (lmdb, redis, OSError) are translated where they arise.
"""

from __future__ import annotations

from typing import Literal

RejectReason = Literal["outdated", "corrupt", "torn"]


class StoreError(Exception):
    """Root of the tree."""


class InvalidKey(StoreError, ValueError):
    """A key field is outside its range."""


class InvalidSettings(StoreError, ValueError):
    """The store cannot be built from these settings."""


class StoreClosed(StoreError):
    """The store was used after `close`."""


class CodecError(StoreError):
    """An entry cannot be encoded, or a verified payload cannot be decoded by this codec."""


class Rejected(StoreError):
    """A stored record that must not be served.

    outdated: written by another record version or codec, or for another model than is there. corrupt: bytes or
    key differ from what was written. torn: a part of it is missing.
    """

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: RejectReason = reason
        self.detail = detail


class TierError(StoreError):
    """A tier could not do what was asked. `reason` is a short stable word for counters."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class TierUnavailable(TierError):
    """The tier cannot be reached or opened, or is broken."""


class TierFull(TierError):
    """There is no room for this record."""
