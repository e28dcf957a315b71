"""Decoding off the loop: who gets a place when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from engine.messages import ImageInput
from service.errors import ImageError, ServiceError
from service.http.admission import Shared
from service.images.decoder_child import DecodeRules
from service.images.decoder_pool import DecoderPool
from service.images.decoder_process import DecodedPage
from service.images.shares import FairPlaces

_log = logging.getLogger(__name__)
_FAILED: Final = "the service failed to read it; the cause is in its log."
Result = TypeVar("Result")


class Decoder:
    """Pictures are worked on at the same time in as many places as there are in `places`."""

    def __init__(self, rules: DecodeRules, places: Shared) -> None:
        self._pool = DecoderPool(rules)
        self._places = FairPlaces(places)
        # One for every place: who has a place need not wait for a thread as well.
        self._threads = ThreadPoolExecutor(places.limit, thread_name_prefix="decode")

    async def run(self, caller: str, work: Callable[[], Result]) -> Result:
        """`work` on a thread, off the loop that also answers the health checks. It holds a place of `caller` until it
        ends, also where nobody waits for it any more. Raises `ImageError`, or what else of ours `work` raises."""
        try:
            return await self._run(caller, work)
        except ServiceError:
            raise
        except Exception:  # no memory, no thread
            _log.exception("a picture could not be read")
            raise ImageError("image_decode_failed", _FAILED) from None

    async def _run(self, caller: str, work: Callable[[], Result]) -> Result:
        async with self._places.place(caller) as place:
            done = asyncio.get_running_loop().run_in_executor(self._threads, work)
            place.keep_until_done(done)
            try:
                return await asyncio.shield(done)
            finally:
                del done  # it has the error, whose traceback has this frame

    def decode(self, data: bytes, left: int) -> ImageInput:
        """The picture in `data`, of at most `left` pixels. Blocks; call it through `run`. Raises `ImageError`."""
        return self._pool.decode(data, left)

    def decode_page(self, data: bytes, left: int, page: int) -> DecodedPage:
        """The page of `data` from 1, a picture or a PDF, as `decode`."""
        return self._pool.decode_page(data, left, page)

    def close(self) -> None:
        """Drop what has not begun, end what has."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
