"""The store's figures for probes and scrapes, which come often and must not wait."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from engine.client import CacheAdmin
from engine.errors import EngineError
from store.types import StoreStats

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 0.5
"""Probes give up after one."""
_FRESH_SECONDS: Final = 1.0


class StoreFigures:
    """None stands for a store that hangs or fails: it must not take what else is known with it."""

    def __init__(self, cache: CacheAdmin) -> None:
        self._cache = cache
        self._asking = asyncio.Lock()
        self._stats: StoreStats | None = None
        self._asked = -_FRESH_SECONDS

    async def recent(self) -> StoreStats | None:
        """Those of the last second. The store is asked once, however many want to know."""
        async with self._asking:
            if time.monotonic() - self._asked >= _FRESH_SECONDS:
                self._stats = await self.now()
                self._asked = time.monotonic()
            return self._stats

    async def now(self) -> StoreStats | None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await self._cache.stats()
        except Exception as error:
            # A worker that is being replaced is told of elsewhere.
            expected = isinstance(error, EngineError | TimeoutError)
            _log.warning("the store gave no figures: %s", str(error) or "too slow", exc_info=not expected)
            return None
