"""Work on the disk, off the loop: it always comes to its end, and fails in our words."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from service.errors import UnavailableError

Result = TypeVar("Result")

_log = logging.getLogger(__name__)
_THREADS: Final = 4
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RETRY_AFTER: Final = 30.0


class DiskThreads:
    """Threads of their own: a disk that hangs must not occupy those that others wait for."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`. Who is cancelled meanwhile leaves when it has ended: it may be using a descriptor that
        is closed next. Raises `UnavailableError` where the disk fails."""
        with in_our_words():
            done = asyncio.get_running_loop().run_in_executor(self._pool, work)
            cancelled = None
            while not done.done():
                try:
                    await asyncio.wait({done})
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                done.exception()  # nobody else looks at it
                raise cancelled
            return done.result()

    @contextlib.asynccontextmanager
    async def holding(
        self, opening: Callable[[], Result], closing: Callable[[Result], None]
    ) -> AsyncGenerator[Result, None]:
        """What `opening` gives, closed at the end of the context in any case. Raises as `run`."""
        held: list[Result] = []
        try:
            await self.run(lambda: held.append(opening()))
            yield held[0]
        finally:
            if held:
                await self.run(lambda: closing(held[0]))

    def close(self) -> None:
        self._pool.shutdown(wait=False)


@contextlib.contextmanager
def in_our_words() -> Iterator[None]:
    """What the disk says becomes an `UnavailableError`; the cause goes to the log."""
    try:
        yield
    except OSError as error:
        _log.error("the disk of uploaded files failed: %s", error.strerror, exc_info=error)
        if error.errno in _FULL:
            message = "There is no room for the file on the service's disk."
            raise UnavailableError("storage_full", message, retry_after=_RETRY_AFTER) from None
        message = "The service's disk of files failed; the cause is in its log."
        raise UnavailableError("storage_failed", message, retry_after=_RETRY_AFTER) from None
