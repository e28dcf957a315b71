"""Prompts that a caller says belong together: a use of one keeps the others from eviction. A hint, never identity."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, defaultdict

from engine.chains.held import Held

# Segments of a group that a use counts for, the newest: a caller may put everything into one.
MOST_KEPT = 1024


def group_of(tenant: str, hint: str | None) -> bytes | None:
    """Names a group of one tenant's (salts are part of a tenant); None for a prompt of no group."""
    return None if not hint else hashlib.sha256(f"{tenant}\0{hint}".encode()).digest()


class Groups:
    """Segments by the group that they were last kept for, each group's in order of use."""

    def __init__(self) -> None:
        self._members: dict[bytes, OrderedDict[Held, None]] = defaultdict(OrderedDict)

    def join(self, held: Held, group: bytes | None) -> None:
        """It is used for `group`; None leaves it where it is."""
        if group is not None:
            self.leave(held)
            held.group = group
            self._members[group][held] = None

    def leave(self, held: Held) -> None:
        if held.group is not None:
            members = self._members[held.group]
            del members[held]
            if not members:
                del self._members[held.group]
            held.group = None

    def newest(self, group: bytes | None) -> list[Held]:
        """Members, least recently used first, at most `MOST_KEPT`."""
        members = self._members.get(group) if group is not None else None
        if members is None:
            return []
        return list(members)[-MOST_KEPT:]
