"""The processes that decode: started when they are needed for the first time, replaced at once when one ends."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Final

from engine.messages import ImageInput
from service.errors import ImageError
from service.images.decode import accepted_kind
from service.images.decoder_child import DecodeRules
from service.images.decoder_process import DecodedPage, DecoderProcess

_log = logging.getLogger(__name__)
_STOPPING: Final = "the service is shutting down."
_NO_PROCESS: Final = "no process to decode it could be started."


class DecoderPool:
    """Thread-safe. As many processes as there were threads in `decode` at the same time."""

    def __init__(self, rules: DecodeRules) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self._idle: list[DecoderProcess] = []
        self._busy: set[DecoderProcess] = set()
        self._closed = False

    def decode(self, data: bytes, left: int) -> ImageInput:
        """The picture in `data`, of at most `left` pixels. Blocks, as long as the rules say at most. Raises
        `ImageError`."""
        return self.decode_page(data, left, 0).image

    def decode_page(self, data: bytes, left: int, page: int) -> DecodedPage:
        """As `decode`, the page of `data` from 1, which may be a PDF as well. 0: it must be a picture."""
        formats = self._rules.formats
        accepted_kind(data, (*formats, "pdf") if page else formats)  # what is no picture needs no process
        process = self._take()
        try:
            return process.decode_page(data, left, page)
        finally:
            self._give_back(process)

    def close(self) -> None:
        """End every process, at work or not."""
        with self._lock:
            self._closed = True
            for process in self._idle:
                process.close()
            self._idle.clear()
            for process in self._busy:
                process.kill()

    def _take(self) -> DecoderProcess:
        with self._lock:
            if self._closed:
                raise ImageError("image_decode_failed", _STOPPING)
            while self._idle and not self._idle[-1].alive:
                self._idle.pop().close()
            process = self._idle.pop() if self._idle else self._start()
            self._busy.add(process)
            return process

    def _give_back(self, process: DecoderProcess) -> None:
        with self._lock:
            self._busy.discard(process)
            if process.alive and not self._closed:
                self._idle.append(process)
                return
            process.close()
            if not self._closed:
                _log.error("a decoding process ended", extra={"status": process.status})
                self._replace()

    def _replace(self) -> None:
        with suppress(ImageError):  # the next picture tries again
            self._idle.append(self._start())

    def _start(self) -> DecoderProcess:
        try:
            return DecoderProcess(self._rules)
        except Exception as error:  # no descriptor, no memory, no process
            _log.error("a decoding process could not be started", exc_info=error)
            raise ImageError("image_decode_failed", _NO_PROCESS) from None
