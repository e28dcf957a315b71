"""The way out: events of requests go to whoever listens, those of one step of the worker together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engine.errors import EngineError
from engine.messages import Event, Failed

log = logging.getLogger(__name__)

Emit = Callable[[Sequence[Event]], None]


class Outbox:
    """Holds what happened until `tell`. Requests with the same `emit` have their events handed over together, so that
    whoever carries them is woken once a step and not once a request."""

    def __init__(self) -> None:
        self._happened: dict[Emit, list[Event]] = {}

    def note(self, emit: Emit, event: Event) -> None:
        self._happened.setdefault(emit, []).append(event)

    def tell(self) -> None:
        """Hand over what happened since the last time."""
        happened, self._happened = self._happened, {}
        for emit, events in happened.items():
            hand_over(emit, events)


def fail(emit: Emit, request: str, error: EngineError) -> None:
    """The only event of a request that was never accepted, at once and from any thread."""
    hand_over(emit, [Failed(request, error.code, error.message, error.image)])


def hand_over(emit: Emit, events: Sequence[Event]) -> None:
    """A listener that fails must not take the worker's thread with it."""
    try:
        emit(events)
    except Exception:
        log.exception("events of requests %s could not be delivered", {event.request_id for event in events})
