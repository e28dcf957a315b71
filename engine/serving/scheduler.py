"""Who runs next: a pure state machine. Events go in as calls, `next` gives the instruction; no torch, clock or I/O.

A request is waiting, in prefill, or decoding. Prefill is done in pieces (one image, or the refresh pass), and a decode
round of all running requests comes between two pieces, so a running stream never waits for more than one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.settings import Limits


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """Do the next piece of this request's prefill."""

    request: str


@dataclass(frozen=True, slots=True)
class DecodeRound:
    """Generate one token for each of these requests, and before it compute the prompt rows that they refine."""

    requests: tuple[str, ...]


Instruction = PrefillPiece | DecodeRound


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as the scheduler sees it: `bytes` of KV that it may take, `deadline` on the caller's clock (None: no
    limit), lower `priority` first, `answers` that it decodes at a time."""

    request: str
    account: str
    bytes: int
    priority: int = 0
    deadline: float | None = None
    answers: int = 1


class Scheduler:
    """Admits by slots and bytes: of the waiting requests the lowest priority number first, among equals the account
    that was served longest ago, within an account first come, first served. A newcomer counts as served just now, so
    those who wait already come first. The one whose turn it is is never overtaken: a large request cannot starve."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[Arrival] = []
        self._prefilling: Arrival | None = None
        self._decoding: list[Arrival] = []
        self._refining: dict[str, int] = {}
        self._turn = 0
        self._served: dict[str, int] = {}
        self._decode_next = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running())

    @property
    def limit(self) -> int | None:
        """KV that may be held at a time, None without a limit."""
        return self._limits.bytes

    @property
    def bytes(self) -> int:
        """KV that the running requests may take."""
        return sum(arrival.bytes for arrival in self._running())

    def fits(self, arrival: Arrival) -> bool:
        """Whether it could run at all, alone."""
        return self._has_room(arrival, 0)

    def arrive(self, arrival: Arrival) -> bool:
        """Queue a request; False if the queue is full and it was not taken."""
        if len(self._waiting) >= self._limits.waiting:
            return False
        self._waiting.append(arrival)
        self._served.setdefault(arrival.account, self._turn)
        return True

    def prefilled(self, request: str, refine: int = 0) -> None:
        """The request's first token is out, it decodes from now on, and refines `refine` prompt rows with the next."""
        if self._prefilling is not None and self._prefilling.request == request:
            self._decoding.append(self._prefilling)
            self._prefilling = None
            self.refines(request, refine)

    def refines(self, request: str, rows: int) -> None:
        """A decoding request computes so many prompt rows with its next token (0: none any more)."""
        self._refining.pop(request, None)
        if rows:
            self._refining[request] = rows

    def end(self, request: str) -> None:
        """The request is over, for whatever reason and in whatever state; unknown ones are ignored."""
        if self._prefilling is not None and self._prefilling.request == request:
            self._prefilling = None
        self._decoding = [arrival for arrival in self._decoding if arrival.request != request]
        self._waiting = [arrival for arrival in self._waiting if arrival.request != request]
        self._refining.pop(request, None)
        here = {arrival.account for arrival in (*self._waiting, *self._running())}
        self._served = {account: turn for account, turn in self._served.items() if account in here}

    def overdue(self, now: float) -> tuple[str, ...]:
        """Requests whose deadline has passed; the caller ends them."""
        known = (*self._waiting, *self._running())
        return tuple(a.request for a in known if a.deadline is not None and a.deadline <= now)

    def next(self) -> Instruction | None:
        """What to do now; None when there is nothing."""
        if self._decoding and self._decode_next:
            self._decode_next = False
            return self._round()
        if self._prefilling is None:
            self._prefilling = self._admit()
        if self._prefilling is not None:
            self._decode_next = True
            return PrefillPiece(self._prefilling.request)
        return self._round() if self._decoding else None

    def _round(self) -> DecodeRound:
        """All that decode, but of those that refine only as many as one round may compute rows for: how many rows a
        request refines with each token is its own, so the others wait for the next round, where they come first."""
        taken, left, rows = [], [], 0
        for arrival in self._decoding:
            more = self._refining.get(arrival.request, 0)
            if more and rows and rows + more > self._limits.refined_rows:
                left.append(arrival)
            else:
                taken.append(arrival)
                rows += more
        self._decoding = [*left, *taken]
        return DecodeRound(tuple(arrival.request for arrival in taken))

    def _has_room(self, arrival: Arrival, taken: int) -> bool:
        return self._limits.bytes is None or taken + arrival.bytes <= self._limits.bytes

    def _running(self) -> Sequence[Arrival]:
        return self._decoding if self._prefilling is None else [*self._decoding, self._prefilling]

    def _admit(self) -> Arrival | None:
        able = [arrival for arrival in self._waiting if self._taken < self._places(arrival)]
        if not able:
            return None
        first = min(able, key=lambda arrival: (arrival.priority, self._served[arrival.account]))
        enough = self._taken + first.answers <= self._places(first) or not self._taken
        if not enough or not self._has_room(first, self.bytes):
            return None
        self._waiting.remove(first)
        self._turn += 1
        self._served[first.account] = self._turn
        return first

    @property
    def _taken(self) -> int:
        return sum(arrival.answers for arrival in self._running())

    def _places(self, arrival: Arrival) -> int:
        """Answers that may be written at a time where this one joins them. Where all places are taken, a few more are
        for accounts that have none: long answers of one must not shut out another."""
        limit = self._limits.running
        theirs = any(other.account == arrival.account for other in self._running())
        return limit if theirs else limit + max(1, limit // 4)
