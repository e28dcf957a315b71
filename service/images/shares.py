"""Places that callers share: what one of them holds for long never keeps the others out."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from service.http.admission import Shared


class Place:
    """A place that somebody holds."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._holders = 1

    def keep_until_done(self, work: asyncio.Future[Any]) -> None:
        """The place stays taken until `work` has ended too, also where nobody waits for it any more."""
        self._holders += 1
        work.add_done_callback(self._ended)

    def leave(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._give_back()

    def _ended(self, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            work.exception()  # nobody else may be there to look at it
        self.leave()


class FairPlaces:
    """Places by the rule of `shared`, where who does not fit waits, each caller in a line of its own. Of those who
    wait, who holds the fewest is next, and equals take turns."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[Place]:
        """A place for `caller`, which is waited for."""
        await self._take(caller)
        place = Place(lambda: self._give_back(caller))
        try:
            yield place
        finally:
            place.leave()

    async def _take(self, caller: str) -> None:
        if caller not in self._lines and self._shared.fits(caller, 1):
            self._shared.taken[caller] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave_line(caller, turn)
            else:
                self._give_back(caller)
            raise

    def _give_back(self, caller: str) -> None:
        self._shared.give_back(caller, 1)
        self._serve_lines()

    def _serve_lines(self) -> None:
        while waiting := [caller for caller in self._lines if self._shared.fits(caller, 1)]:
            caller = min(waiting, key=self._shared.taken.__getitem__)
            turn = self._lines[caller].popleft()
            self._lines.move_to_end(caller)
            if not self._lines[caller]:
                del self._lines[caller]
            if not turn.done():
                self._shared.taken[caller] += 1
                turn.set_result(None)

    def _leave_line(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(caller, deque())
        with contextlib.suppress(ValueError):
            line.remove(turn)
        if not line:
            self._lines.pop(caller, None)
