"""F3 and F4: a client that leaves ends the work for it, streamed or not, whatever the work is at the time."""

from __future__ import annotations

import httpx
import pytest

from engine.messages import TextDelta
from service.http.connections import Alarm
from service.http.protocol import BoundedProtocol
from tests.service.asking import open_request
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, accepted, says
from tests.service.images.pictures import data_url, plain
from tests.service.serving import Host, eventually

RED = data_url(plain())


def endless(engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), TextDelta(request.id, "one"), 3600.0]


def idle(engine: FakeEngine, aborted: int) -> None:
    eventually(
        lambda: engine.open == 0 and engine.aborted == aborted, f"{aborted} requests ended in the engine"
    )


def test_f3_leaving_a_stream_after_one_chunk(api: httpx.Client, engine: FakeEngine) -> None:
    endless(engine)
    with open_request(api, stream=True, images=[RED]) as connection:
        received = b""
        while b"one" not in received:
            received += connection.recv(65536)
        assert engine.open == 1
    idle(engine, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_f3_leaving_before_anything_was_sent(api: httpx.Client, engine: FakeEngine, stream: bool) -> None:
    engine.script = lambda request: [3600.0]
    with open_request(api, stream=stream):
        eventually(lambda: engine.open == 1, "the engine has it")
    idle(engine, 1)


def test_f3_leaving_a_json_request(api: httpx.Client, engine: FakeEngine) -> None:
    endless(engine)
    with open_request(api):
        eventually(lambda: engine.open == 1, "the engine has it")
    idle(engine, 1)


def test_f3_leaving_before_anything_was_sent_is_noticed_within_a_tenth_of_a_second(
    api: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless(engine)
    probes: list[float] = []
    alarm = Alarm.set

    def noted(self: Alarm, seconds: float) -> None:
        if self._call.__name__ == BoundedProtocol._send_probe.__name__:
            probes.append(seconds)
        alarm(self, seconds)

    monkeypatch.setattr(Alarm, "set", noted)
    with open_request(api):
        eventually(lambda: engine.open == 1, "the engine has it")
    idle(engine, 1)
    assert sum(probes[:-1]) <= 0.1, "the second tells, and the alarm for a third is not waited for"
    assert len(probes) > 1


def test_f3_normal_ends_are_no_aborts(api: httpx.Client, engine: FakeEngine) -> None:
    for stream in (False, True):
        api.post("/v1/chat", json={"prompt": "x", "stream": stream}).raise_for_status()
    eventually(lambda: engine.open == 0, "both ended")
    assert engine.aborted == 0


def test_f4_leaving_while_images_are_fetched(start: Start, engine: FakeEngine, host: Host) -> None:
    api = start(fetch_timeout=3600.0, max_concurrent=1)
    with open_request(api, images=[host.hangs("/slow")]):
        eventually(lambda: bool(host.heads), "the host was asked")
        assert api.post("/v1/chat", json={"prompt": "x"}).status_code == 429
    eventually(
        lambda: api.post("/v1/chat", json={"prompt": "x"}).status_code == 200, "the place is free again"
    )
    assert len(engine.requests) == 1
    assert 'outcome="client_gone"' in api.get("/metrics").text


def test_disconnects_are_counted(start: Start, engine: FakeEngine) -> None:
    api = start()
    endless(engine)
    for stream in (False, True):
        with open_request(api, stream=stream):
            eventually(lambda: engine.open == 1, "the engine has it")
        eventually(lambda: engine.open == 0, "it ended")
    eventually(
        lambda: "conduit_client_disconnects_total 2.0" in api.get("/metrics").text, "both were counted"
    )


def test_disconnects_by_the_dozen_leave_nothing(api: httpx.Client, engine: FakeEngine) -> None:
    _leave(api, engine, 30)


@pytest.mark.slow
def test_f3_500_disconnects_leave_nothing(api: httpx.Client, engine: FakeEngine) -> None:
    _leave(api, engine, 500)


def _leave(api: httpx.Client, engine: FakeEngine, times: int) -> None:
    engine.script = says("one two three four five six seven", pause=0.002)
    for i in range(times):
        connection = open_request(api, stream=bool(i % 2))
        if i % 3 == 0:
            connection.recv(64)
        connection.close()
    eventually(lambda: engine.open == 0, "all requests ended")
    assert api.get("/readyz").status_code == 200
    api.post("/v1/chat", json={"prompt": "x"}).raise_for_status()
