"""Decoding in processes: one that is killed, dies or wants too much memory costs its picture and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from engine.messages import ImageInput
from service.errors import ImageError
from service.http.admission import Shared
from service.images import decoder_child, decoder_process
from service.images.decoder import Decoder
from service.images.decoder_child import DecodeRules, memory_needed
from service.images.decoder_pool import DecoderPool
from service.images.decoder_process import DecoderProcess
from tests.service.images.decoding import FORMATS, decoded
from tests.service.images.pictures import encode, noisy, plain
from tests.service.serving import PATIENCE, eventually

PIXELS = 1_000_000
RULES = DecodeRules((*FORMATS, "tiff", "avif"), PIXELS, PIXELS, PATIENCE, memory_needed(PIXELS, 1 << 20))
PNG = plain()


@contextmanager
def pool(rules: DecodeRules = RULES) -> Iterator[DecoderPool]:
    found = DecoderPool(rules)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[DecoderPool]:
    with pool() as found:
        yield found


def processes() -> set[int]:
    """Our children, zombies included."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def refusal(found: DecoderPool, data: bytes = PNG) -> ImageError:
    with pytest.raises(ImageError) as caught:
        found.decode(data, PIXELS)
    return caught.value


@contextmanager
def stopped(found: DecoderPool) -> Iterator[int]:
    """The process that is next does nothing, as if it were at work for ever."""
    if not found._idle:
        found._replace()
    (pid,) = (process._process.pid for process in found._idle)
    os.kill(pid, signal.SIGSTOP)
    yield pid


def death_at_work(found: DecoderPool, pid: int) -> ImageError:
    """What a picture hears whose process is killed while it has it."""

    def kill() -> None:
        eventually(lambda: bool(found._busy), "it is at work")
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    error = refusal(found)
    killer.join()
    return error


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
@pytest.mark.parametrize("size", [(1, 1), (64, 48), (400, 300)], ids=str)
def test_pixels_are_those_of_this_process(shared: DecoderPool, kind: str, size: tuple[int, int]) -> None:
    data = noisy(size, kind)
    assert shared.decode(data, PIXELS) == decoded(data, RULES.formats)


def test_pictures_of_16_bits_are_decoded_there_too(shared: DecoderPool) -> None:
    data = encode(Image.new("I;16", (8, 8), 0x8080))
    assert shared.decode(data, PIXELS).pixels == bytes((128,)) * 192


def test_a_refusal_is_the_picture_s_and_keeps_the_process(shared: DecoderPool) -> None:
    shared.decode(PNG, PIXELS)
    before = processes()
    assert refusal(shared, PNG[:40]).code == "invalid_image"
    assert refusal(shared, noisy((1001, 1001), "BMP")).message == f"it has more than {PIXELS} pixels."
    assert refusal(shared, b"BM").code == "invalid_image"
    assert processes() == before


def test_b1_the_pixels_that_a_request_has_left_are_judged_by_the_header(shared: DecoderPool) -> None:
    with pytest.raises(ImageError, match=f"with it the request has more than {PIXELS} pixels in all"):
        shared.decode(PNG, 8 * 6 - 1)
    assert shared.decode(PNG, 8 * 6).width == 8


def test_what_is_no_picture_starts_no_process() -> None:
    with pool() as found:
        before = processes()
        assert refusal(found, b"hello").code == "invalid_image"
        assert refusal(found, b"%PDF-1.7").code == "unsupported_image_format"
        assert processes() == before


def test_a_picture_that_takes_too_long_is_refused_and_its_process_replaced() -> None:
    with pool(replace(RULES, seconds=0.05)) as found, stopped(found) as pid:
        error = refusal(found)
        assert (error.code, error.message) == (
            "image_decode_timeout",
            "decoding it takes longer than 0.05 s.",
        )
        assert pid not in processes(), "no zombie"
        assert len(found._idle) == 1, "the next one is there already"


def test_after_a_kill_the_next_picture_is_decoded() -> None:
    with pool() as found, stopped(found) as pid:
        error = death_at_work(found, pid)
        assert (error.code, error.message) == ("image_decode_failed", "the process that decoded it ended.")
        assert found.decode(PNG, PIXELS) == decoded(PNG)


def test_a_process_that_died_while_idle_costs_nobody_anything() -> None:
    with pool() as found, stopped(found) as pid:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not found._idle[0].alive, "it is seen to be dead")
        assert found.decode(PNG, PIXELS) == decoded(PNG)


@pytest.mark.parametrize("mebibytes", [2, 4, 6])
def test_a_picture_that_takes_too_much_memory_is_refused_and_the_next_is_decoded(mebibytes: int) -> None:
    """For the picture, or only for handing it over."""
    large = encode(Image.new("RGB", (1000, 1000)), "PNG")
    with pool(replace(RULES, memory_bytes=mebibytes << 20)) as found:
        error = refusal(found, large)
        assert (error.code, error.message) == ("image_too_large", "it takes more memory than a picture may.")
        assert found.decode(PNG, PIXELS) == decoded(PNG)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_every_honest_picture_fits_into_the_memory_that_is_reckoned(shared: DecoderPool, kind: str) -> None:
    image = (
        Image.effect_noise((200, 200), 60).resize((1000, 1000)).convert("CMYK" if kind == "JPEG" else "RGB")
    )
    options = {"JPEG": {"progressive": True}, "WEBP": {"method": 0}}.get(kind, {})
    assert shared.decode(encode(image, kind, **options), PIXELS).width == 1000


def test_a_process_says_nothing_that_it_should_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is no answer ends it."""
    process = DecoderProcess(RULES)
    try:
        for answer in ({"width": 9}, {"width": 8, "height": 7, "digest": "00"}, [], "x", {"code": "x"}):
            monkeypatch.setattr(DecoderProcess, "_answer", lambda _, deadline, answer=answer: answer)
            with pytest.raises(ImageError) as caught:
                process.decode(PNG, PIXELS)
            assert caught.value.code == "image_decode_failed", answer
        assert not process.alive
    finally:
        process.close()


def test_a_process_that_cannot_be_started_is_an_error_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    with pool() as found:
        before = descriptors()
        monkeypatch.setattr(subprocess, "Popen", fail)
        assert refusal(found).code == "image_decode_failed"
        assert descriptors() == before
        monkeypatch.undo()
        assert found.decode(PNG, PIXELS) == decoded(PNG)


@pytest.mark.parametrize("fault", [OSError(28, "no space"), MemoryError(), RecursionError(), SystemError()])
def test_a_fault_of_the_process_itself_is_an_error_of_the_picture(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """Of ours here, on either way."""

    def fail(*_: object) -> None:
        raise fault

    with pool() as found:
        found.decode(PNG, PIXELS)
        for name in ("_write", "_read"):
            monkeypatch.setattr(decoder_process, name, fail)
            assert refusal(found).code == "image_decode_failed"
            monkeypatch.undo()
            assert found.decode(PNG, PIXELS) == decoded(PNG)


def test_an_answer_that_comes_too_late_is_never_anothers_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the exchange in the middle."""

    class Interrupt(BaseException):
        pass

    def fail(*_: object) -> None:
        raise Interrupt

    with pool() as found:
        found.decode(PNG, PIXELS)
        monkeypatch.setattr(DecoderProcess, "_answer", fail)
        with pytest.raises(Interrupt):
            found.decode(plain((0, 0, 255)), PIXELS)
        monkeypatch.undo()
        assert found.decode(PNG, PIXELS) == decoded(PNG)


def test_memory_shared_with_it_is_empty_between_pictures() -> None:
    with pool() as found:
        found.decode(noisy((300, 300)), PIXELS)
        refusal(found, PNG[:40])
        (process,) = found._idle
        assert [os.fstat(file).st_size for file in (process._source, process._target)] == [0, 0]


def test_nothing_is_left_of_many_deaths() -> None:
    with pool() as found:
        found.decode(PNG, PIXELS)
        before = len(descriptors()), len(processes())
        for _ in range(5):
            with stopped(found) as pid:
                assert death_at_work(found, pid).code == "image_decode_failed"
        assert (len(descriptors()), len(processes())) == before


def test_closing_ends_everything_also_what_is_at_work() -> None:
    files, children = descriptors(), processes()
    with pool() as found, stopped(found):
        errors: list[ImageError] = []
        work = threading.Thread(target=lambda: errors.append(refusal(found)))
        work.start()
        eventually(lambda: bool(found._busy), "it is at work")
        found.close()
        work.join(PATIENCE)
        assert [error.code for error in errors] == ["image_decode_failed"]
        assert refusal(found).message == "the service is shutting down."
    assert (descriptors(), processes()) == (files, children)


def test_a_process_ends_with_the_service() -> None:
    """Killed with no time for anything."""
    code = (
        "import sys; from tests.service.images.test_decoder import *; found = DecoderPool(RULES);"
        "found.decode(PNG, PIXELS); print(*processes(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        pid = int(service.stdout.readline())
        service.kill()
    eventually(lambda: not _runs(pid), "it is gone")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_at_work_it_ends_by_itself_where_the_service_is_gone() -> None:
    """Its own clock runs out a little after the service would have killed it."""
    before = signal.getsignal(signal.SIGALRM)
    rang: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
    try:
        with decoder_child._time_limit(0.01):
            eventually(lambda: bool(rang), "it rings")
        with decoder_child._time_limit(0.05):
            pass
        time.sleep(0.1)
        assert len(rang) == 1, "not between two pictures"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_it_is_light_and_knows_no_secrets() -> None:
    """What is imported there, and which variables it has."""
    code = (
        "import json, os, sys; import service.images.decoder_child;"
        "print(json.dumps([sorted(sys.modules), sorted(os.environ)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={name: os.environ[name] for name in decoder_process._PASSED_ON if name in os.environ},
        capture_output=True,
        check=True,
    )
    modules, variables = json.loads(done.stdout)
    heavy = {
        "torch",
        "numpy",
        "httpx",
        "httpcore",
        "fastapi",
        "pydantic",
        "starlette",
        "lmdb",
        "redis",
        "asyncio",
    }
    assert heavy.isdisjoint(modules)
    assert not any(name.startswith("CONDUIT_") for name in variables)


def test_secrets_of_the_service_are_not_in_its_environment(
    shared: DecoderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDUIT_ADMIN_KEY", "a-secret-of-ours")
    process = DecoderProcess(RULES)
    try:
        process.decode(PNG, PIXELS)
        assert b"a-secret" not in Path(f"/proc/{process._process.pid}/environ").read_bytes()
    finally:
        process.close()


def test_a_decoder_leaves_no_core_file(shared: DecoderPool) -> None:
    """It would be somebody's picture."""
    shared.decode(PNG, PIXELS)
    limits = Path(f"/proc/{shared._idle[0]._process.pid}/limits").read_text()
    assert "Max core file size        0                    0" in limits


def test_who_leaves_keeps_the_place_until_his_picture_is_done() -> None:
    async def work() -> None:
        decoder = Decoder(RULES, Shared(2, several=True))
        going_on = threading.Event()
        slow = asyncio.create_task(decoder.run("a", going_on.wait))
        await asyncio.sleep(0.01)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        second = asyncio.create_task(decoder.run("a", lambda: 2))
        third = asyncio.create_task(decoder.run("b", lambda: 3))
        assert await asyncio.wait_for(third, PATIENCE) == 3, "others are served"
        assert not second.done()
        going_on.set()
        assert await asyncio.wait_for(second, PATIENCE) == 2
        decoder.close()

    asyncio.run(work())


def test_pictures_are_decoded_at_the_same_time() -> None:
    """Two threads, two processes."""
    with pool() as found:
        meet = threading.Barrier(2)
        results: list[ImageInput] = []

        def decode() -> None:
            meet.wait(PATIENCE)
            results.extend(found.decode(PNG, PIXELS) for _ in range(5))

        threads = [threading.Thread(target=decode) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert results == [decoded(PNG)] * 10
        assert 1 <= len(found._idle) <= 2
