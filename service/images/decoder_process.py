"""Our end of one decoding process: start it, hand it a file, kill it.

Handing a picture over and taking its pixels back costs this process 0.06 ms of a CPU for a small one (0.15 ms of all
CPUs together), 2.5 ms for one of 2 megapixels and 40 ms for one of 20; decoding them here would cost it 0.4, 23 and
265 ms, most of it with the interpreter's lock. So small pictures go this way as well.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from engine.messages import ImageInput
from service.errors import ImageError
from service.images.decoder_child import ORDER, DecodeRules

_ROOT: Final = Path(__file__).parents[2]
_LONGEST_ANSWER: Final = 4096
# Of our environment: the rest holds keys.
_PASSED_ON: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
# A picture is one thread's work. The libraries would reserve memory for as many as there are processors.
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class DecodedPage:
    """A page, and how many pages its file has: a picture has one."""

    image: ImageInput
    pages: int


class DecoderProcess:
    """Its memory is shared through two files without a name, which are gone with the last process that has them open.
    A picture is written into one and read out of the other, outside the interpreter's lock, and takes no memory there
    between two pictures. For one thread at a time, but for `kill`. Raises `OSError` where it cannot be started."""

    def __init__(self, rules: DecodeRules) -> None:
        self._rules = rules
        with ExitStack() as opened:
            self._source, self._target = (_shared_memory(opened) for _ in range(2))
            self._channel, theirs = map(opened.enter_context, socket.socketpair())
            self._process = _start((theirs.fileno(), self._source, self._target), rules)
            theirs.close()
            self._opened = opened.pop_all()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """What it ended with, as `subprocess` has it."""
        return self._process.returncode

    def decode(self, data: bytes, left: int) -> ImageInput:
        """The picture in `data`, of at most `left` pixels. Raises as `decode_page`."""
        return self.decode_page(data, left, 0).image

    def decode_page(self, data: bytes, left: int, page: int) -> DecodedPage:
        """The page of `data`, from 1, of at most `left` pixels; 0: `data` must be a picture. Raises `ImageError`; the
        process has ended then, unless it said itself what is wrong with the picture."""
        try:
            return self._exchange(data, left, page)
        except ImageError:
            raise
        except BaseException as error:
            # An answer that comes now would be taken for the next picture's.
            self.kill()
            if not isinstance(error, Exception):
                raise
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> ImageError:
        if isinstance(error, TimeoutError):
            took = f"decoding it takes longer than {self._rules.seconds:g} s."
            return ImageError("image_decode_timeout", took)
        return ImageError("image_decode_failed", "the process that decoded it ended.")

    def kill(self) -> None:
        """End it, whatever it does. From any thread, any number of times."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and let go of everything."""
        self.kill()
        self._opened.close()

    def _exchange(self, data: bytes, left: int, page: int) -> DecodedPage:
        deadline = time.monotonic() + self._rules.seconds
        try:
            _write(self._source, data)
            self._channel.sendall(ORDER.pack(len(data), left, page))
            answer = self._answer(deadline)
            if "code" in answer:
                raise ImageError(answer["code"], answer["message"])
            width, height = answer["width"], answer["height"]
            pixels = _read(self._target, 3 * width * height)
            image = ImageInput(bytes.fromhex(answer["digest"]), width, height, pixels)
            return DecodedPage(image, answer["pages"])
        finally:
            for file in (self._source, self._target):
                os.ftruncate(file, 0)

    def _answer(self, deadline: float) -> dict[str, Any]:
        """Raises `TimeoutError`, `OSError` or `ValueError`."""
        line = b""
        while not line.endswith(b"\n"):
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            received = self._channel.recv(_LONGEST_ANSWER)
            line += received
            if not received or len(line) > _LONGEST_ANSWER:
                raise ConnectionError
        return dict(json.loads(line))


def _start(descriptors: Sequence[int], rules: DecodeRules) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "service.images.decoder_child"),
            *map(str, descriptors),
            json.dumps(asdict(rules)),
        ],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # the codecs write what they find in a picture
        cwd=_ROOT,
        env=_ONE_THREAD | {name: os.environ[name] for name in _PASSED_ON if name in os.environ},
    )


def _shared_memory(opened: ExitStack) -> int:
    """A descriptor of memory without a name; of a file without one where the system has no such memory."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("picture")
        opened.callback(os.close, file)
        return file
    return opened.enter_context(tempfile.TemporaryFile()).fileno()


def _write(file: int, data: bytes) -> None:
    place = 0
    with memoryview(data) as view:
        while place < len(view):
            place += os.pwrite(file, view[place:], place)


def _read(file: int, nbytes: int) -> bytes:
    data = os.pread(file, nbytes, 0)
    if len(data) != nbytes:
        raise ConnectionError
    return data
