"""Whatever breaks underneath the decoder, nothing but ImageError leaves it, and the next picture is decoded."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.errors import ImageError
from service.http.admission import Shared
from service.images.decoder import Decoder
from tests.service.images.decoding import decoded
from tests.service.images.test_decoder import PIXELS, PNG, RULES

ERRORS = [
    OSError(24, "Too many open files"),
    MemoryError(),
    RuntimeError("can't start new thread"),
    ValueError("odd"),
    RecursionError(),
]
# All that the decoder asks of the system and of the library, for a process that is new and for one that is there.
TO_START: dict[str, tuple[Any, str]] = {
    "its memory": (os, "memfd_create"),
    "its channel": (socket, "socketpair"),
    "the process": (subprocess, "Popen"),
}
AT_WORK: dict[str, tuple[Any, str]] = {
    "the file goes in": (os, "pwrite"),
    "its answer is read": (json, "loads"),
    "the pixels come out": (os, "pread"),
    "the memory is emptied": (os, "ftruncate"),
}


def raising(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """With its loop, which needs of the system what is broken later."""
    with asyncio.Runner() as runner:
        runner.get_loop()
        yield runner


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    decoder = Decoder(RULES, Shared(1, several=False))
    yield decoder
    decoder.close()


def decode(runner: asyncio.Runner, decoder: Decoder) -> Any:
    """One picture as the loader has it decoded."""
    return runner.run(decoder.run("alice", lambda: decoder.decode(PNG, PIXELS)))


@pytest.mark.parametrize("place", [*TO_START, *AT_WORK])
def test_nothing_but_image_errors_leaves_the_decoder(
    runner: asyncio.Runner, decoder: Decoder, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    decode(runner, decoder)
    for error in ERRORS if place in TO_START else ERRORS[:2]:
        if place in TO_START:
            for process in decoder._pool._idle:
                process.kill()
        with monkeypatch.context() as patch:
            patch.setattr(*(TO_START | AT_WORK)[place], raising(error))
            with pytest.raises(ImageError) as caught:
                decode(runner, decoder)
        assert caught.value.code == "image_decode_failed"
    assert decode(runner, decoder) == decoded(PNG)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_nor_does_what_the_work_raises_or_the_lack_of_a_thread(
    runner: asyncio.Runner, decoder: Decoder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for _ in range(2):  # its place is free again
        with pytest.raises(ImageError) as caught:
            runner.run(decoder.run("alice", raising(error)))
        assert caught.value.code == "image_decode_failed"
    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", raising(error))
        with pytest.raises(ImageError):
            decode(runner, decoder)
    assert runner.run(decoder.run("alice", lambda: 7)) == 7
