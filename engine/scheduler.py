"""Who runs next: a pure state machine. Events go in as calls, `next` gives the instruction; no torch, clock or I/O.

A request is waiting, in prefill, or decoding. Prefill is done in pieces (one image, or the refresh pass), and a decode
round of all running requests comes between two pieces, so a running stream never waits for more than one piece.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillPiece:
    """Do the next piece of this request's prefill."""

    request: str


@dataclass(frozen=True, slots=True)
class DecodeRound:
    """Generate one token for each of these requests."""

    requests: tuple[str, ...]


Instruction = PrefillPiece | DecodeRound


class Scheduler:
    """First come, first served. `max_running` requests hold KV at a time, `max_waiting` more may queue."""

    def __init__(self, max_waiting: int, max_running: int) -> None:
        self._max_waiting = max_waiting
        self._max_running = max_running
        self._waiting: deque[str] = deque()
        self._prefilling: str | None = None
        self._decoding: list[str] = []
        self._decode_turn = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._decoding) + (self._prefilling is not None)

    def arrive(self, request: str) -> bool:
        """Queue a request; False if the queue is full and it was not taken."""
        if len(self._waiting) >= self._max_waiting:
            return False
        self._waiting.append(request)
        return True

    def prefilled(self, request: str) -> None:
        """The request's first token is out, it decodes from now on."""
        if self._prefilling == request:
            self._prefilling = None
            self._decoding.append(request)

    def end(self, request: str) -> None:
        """The request is over, for whatever reason and in whatever state; unknown ones are ignored."""
        if self._prefilling == request:
            self._prefilling = None
        elif request in self._decoding:
            self._decoding.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def next(self) -> Instruction | None:
        """What to do now; None when there is nothing."""
        if self._prefilling is None and self._waiting and self.running < self._max_running:
            self._prefilling = self._waiting.popleft()
        if self._decoding and (self._decode_turn or self._prefilling is None):
            self._decode_turn = False
            return DecodeRound(tuple(self._decoding))
        if self._prefilling is not None:
            self._decode_turn = True
            return PrefillPiece(self._prefilling)
        return None
