"""What pictures in work hold is bounded over all requests, and given back when a request ends."""

from __future__ import annotations

import threading

import pytest

from engine.messages import ImageInput
from service.errors import UnavailableError
from service.http.admission import Shared
from service.images.picture_memory import PictureMemory
from tests.service.asking import ask, open_request, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, accepted, finished
from tests.service.images.pictures import data_url, plain
from tests.service.serving import Host, eventually

EDGE = 10
ONE = 3 * EDGE * EDGE


def image(value: int = 0, nbytes: int = ONE) -> ImageInput:
    return ImageInput(bytes((value,)) * 32, nbytes // 3, 1, bytes((value,)) * nbytes)


def picture(red: int) -> str:
    return data_url(plain((red, 0, 0), (EDGE, EDGE)))


def test_pixels_in_work_are_bounded_and_come_back() -> None:
    memory = PictureMemory(Shared(2 * ONE, several=False))
    first, second, third = (image(n) for n in range(3))
    memory.take("a", first)
    memory.take("a", second)
    with pytest.raises(UnavailableError) as caught:
        memory.take("a", third)
    assert (caught.value.code, caught.value.retry_after) == ("queue_full", 1.0)
    memory.give_back("a", first)
    memory.take("a", third)


def test_pixels_in_work_count_once_for_all_requests_that_share_them() -> None:
    shared = Shared(ONE, several=False)
    memory, one = PictureMemory(shared), image()
    for _ in range(3):
        memory.take("a", one)
    assert shared.total == ONE
    for left in (ONE, ONE, 0):
        memory.give_back("a", one)
        assert shared.total == left
    memory.take("a", image(1))


def test_pixels_in_work_of_one_tenant_leave_room_for_the_next() -> None:
    memory = PictureMemory(Shared(8 * ONE, several=True))
    kept = [image() for _ in range(10)]
    unused = iter(kept)
    for tenant, fits in (("a", 4), ("b", 2), ("c", 1)):
        for _ in range(fits):
            memory.take(tenant, next(unused))
        with pytest.raises(UnavailableError):
            memory.take(tenant, next(unused))


def test_pixels_in_work_are_those_of_requests_that_have_not_ended(start: Start, engine: FakeEngine) -> None:
    """Four requests as large as they may be are what one tenant gets."""
    api = start(max_request_pixels=EDGE * EDGE, upload_cache_bytes=0)
    answer = threading.Event()
    engine.script = lambda request: [accepted(request), answer, finished(request, 1)]
    held = [open_request(api, images=[picture(red)]) for red in range(4)]
    eventually(lambda: engine.submitted == 4, "four are being answered")
    error = refused(api.post("/v1/chat", json=ask(picture(9))), 429, "queue_full")
    assert "pictures" in error["message"]
    assert api.post("/v1/chat", json=ask(picture(9))).headers["retry-after"] == "1"
    held[0].close()
    eventually(lambda: engine.aborted == 1, "the engine hears that its client left")
    answer.set()
    eventually(
        lambda: api.post("/v1/chat", json=ask(picture(9))).status_code == 200, "there is room for another one"
    )
    for connection in held:
        connection.close()


def test_pixels_in_work_come_back_from_requests_that_fail(
    start: Start, engine: FakeEngine, host: Host
) -> None:
    api = start(max_request_pixels=EDGE * EDGE, upload_cache_bytes=0, url_cache_bytes=0)
    too_many = [picture(1), picture(2)]
    for _ in range(9):
        refused(api.post("/v1/chat", json=ask(*too_many)), 400, "image_too_large")
        refused(api.post("/v1/chat", json=ask(picture(3), host.url("/none"))), 400, "image_fetch_failed")
        api.post("/v1/chat", json=ask(picture(4))).raise_for_status()
    engine.script = lambda request: [RuntimeError("a fault of the engine's")]
    for _ in range(9):
        assert api.post("/v1/chat", json=ask(picture(5))).status_code == 500
    engine.reset()
    api.post("/v1/chat", json=ask(picture(6))).raise_for_status()


def test_pixels_in_work_that_many_ask_about_are_one_picture(start: Start, engine: FakeEngine) -> None:
    api = start(max_request_pixels=EDGE * EDGE)
    api.post("/v1/chat", json=ask(picture(1))).raise_for_status()
    answer = threading.Event()
    engine.script = lambda request: [accepted(request), answer, finished(request, 1)]
    held = [open_request(api, images=[picture(1)]) for _ in range(12)]
    eventually(lambda: engine.submitted == 13, "twelve more are being answered")
    answer.set()
    for connection in held:
        connection.close()
