"""What a request runs with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Choice:
    """The policy and ratio that a request runs with. `fallback` says why it is not what was asked for. `refine`: prompt
    rows that a decode step computes anew until all are exact. `chain`: which chains it goes on from, and whether it
    reads and leaves any (the cache mode decides that as it does for entries). `turns`: what becomes of held text behind
    an edit."""

    policy: Policy
    ratio: float
    fallback: str | None = None
    refine: int = 0
    chain: Literal["auto", "exact", "off"] = "off"
    turns: Literal["compute", "reuse"] = "compute"
    reads_chains: bool = False
    keeps_chains: bool = False
