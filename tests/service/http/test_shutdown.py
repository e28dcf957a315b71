"""A service that is told to stop: running streams get their time, new requests are refused in words."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from demo.service_process import ServiceProcess
from engine.messages import GenerateRequest, TextDelta
from service.app import create_app
from service.demo_mode import demo_samples
from service.http.server import DrainingServer
from service.settings import Settings
from tests.service.asking import events_of, refused
from tests.service.fake_engine import FakeEngine, Step, accepted, finished
from tests.service.http.wire import HEAD, connect, post, to_the_end
from tests.service.serving import Served, eventually, running

ASKED = {"prompt": "x", "stream": True}


@contextlib.contextmanager
def draining(engine: FakeEngine, drain: float) -> Iterator[tuple[httpx.Client, Served]]:
    """The service on the fake engine, under the server that it really runs under."""
    settings = Settings(port=0, drain_timeout=drain)
    with (
        running(DrainingServer(create_app(settings, engine), settings)) as served,
        httpx.Client(base_url=served.url, timeout=30, trust_env=False) as api,
    ):
        yield api, served


def in_mid_stream(api: httpx.Client, asked: dict[str, Any], meanwhile: Callable[[], None]) -> list[Any]:
    """The events of a stream, read to its end after `meanwhile`."""
    with api.stream("POST", "/v1/chat", json=asked) as stream:
        pieces = stream.iter_text()
        text = ""
        while text.count("data: ") < 2:
            text += next(pieces)
        meanwhile()
        return events_of(text + "".join(pieces))


def new_requests_are_refused(api: httpx.Client, asked: dict[str, Any]) -> None:
    eventually(lambda: api.get("/readyz").json()["reasons"] == ["draining"], "it says that it drains")
    refused(api.post("/v1/chat", json=asked), 503, "draining")
    assert api.get("/livez").status_code == 200


def ended(served: Served) -> None:
    eventually(lambda: not served.thread.is_alive(), "the server ends by itself")


def interrupt(served: Served) -> None:
    served.server.handle_exit(signal.SIGTERM, None)


def test_running_streams_end_well_when_the_service_stops(engine: FakeEngine) -> None:
    go_on = threading.Event()
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "one"),
        go_on,
        TextDelta(request.id, " two"),
        finished(request, 2),
    ]
    with draining(engine, drain=3600.0) as (api, served):

        def meanwhile() -> None:
            interrupt(served)
            new_requests_are_refused(api, ASKED)
            go_on.set()

        *chunks, done = in_mid_stream(api, ASKED, meanwhile)
        ended(served)
    assert (chunks[-1]["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")
    assert (engine.closed, engine.open, engine.aborted) == (True, 0, 0)


def test_streams_that_do_not_make_it_end_with_an_error_event(engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), TextDelta(request.id, "one"), 3600.0]
    with draining(engine, drain=0.2) as (api, served):
        *_, error, done = in_mid_stream(api, ASKED, lambda: interrupt(served))
        ended(served)
    assert (error["error"]["code"], done) == ("engine_stopped", "[DONE]")
    assert (engine.closed, engine.open) == (True, 0)


def test_an_idle_service_stops_at_once(engine: FakeEngine) -> None:
    with draining(engine, drain=3600.0) as (api, served):
        api.post("/v1/chat", json=ASKED).raise_for_status()
        interrupt(served)
        ended(served)
    assert engine.closed


def endless(request: GenerateRequest) -> list[Step]:
    return [accepted(request), TextDelta(request.id, "one"), 3600.0]


def interrupt_twice(served: Served) -> None:
    interrupt(served)
    interrupt(served)


def test_l8_a_second_signal_ends_every_stream_with_one_error_event(engine: FakeEngine) -> None:
    engine.script = endless
    with draining(engine, drain=3600.0) as (api, served):
        *chunks, error, done = in_mid_stream(api, ASKED, lambda: interrupt_twice(served))
        ended(served)
    assert (error["error"]["code"], done) == ("draining", "[DONE]")
    assert all("error" not in chunk for chunk in chunks)
    assert (engine.closed, engine.open, engine.aborted) == (True, 0, 1)


def test_l8_a_second_signal_answers_whoever_waits_for_a_whole_answer(engine: FakeEngine) -> None:
    engine.script = endless
    with ThreadPoolExecutor() as pool, draining(engine, drain=3600.0) as (api, served):
        answer = pool.submit(api.post, "/v1/chat", json={"prompt": "x"})
        eventually(lambda: engine.open == 1, "it is worked on")
        interrupt_twice(served)
        refused(answer.result(), 503, "draining")
        ended(served)
    assert (engine.closed, engine.open, engine.aborted) == (True, 0, 1)


def test_l8_operators_streams_end_with_one_error_event_at_the_first_signal(engine: FakeEngine) -> None:
    for number in range(3):
        engine.cache.put(f"{number:064}")
    engine.cache.scrub_pause = 3600.0
    with ThreadPoolExecutor() as pool, draining(engine, drain=3600.0) as (api, served):
        answer = pool.submit(api.post, "/v1/cache/verify")
        eventually(lambda: engine.cache.scrubs == 1, "it reads")
        interrupt(served)
        error, done = events_of(answer.result().text)
        ended(served)
    assert (error["error"]["code"], done) == ("draining", "[DONE]")
    assert engine.cache.scrubs == 0


def test_who_still_sends_a_body_when_the_service_goes_is_told_why(engine: FakeEngine) -> None:
    with draining(engine, drain=0.0) as (api, served), connect(api) as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        api.get("/livez")
        interrupt(served)
        answer = to_the_end(connection)
        ended(served)
    assert answer.startswith(b"HTTP/1.1 503 ") and b'"draining"' in answer


def test_who_reads_nothing_does_not_keep_the_service_from_going(engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), *[TextDelta(request.id, "x" * 10**6)] * 30]
    with draining(engine, drain=0.0) as (_, served), socket.create_connection(served.address) as connection:
        connection.sendall(post(body=b'{"prompt": "x", "stream": true}'))
        eventually(lambda: engine.open == 1, "it is answered")
        interrupt(served)
        ended(served)
    assert engine.closed


@dataclass(frozen=True, slots=True)
class Tiny:
    """A checkpoint of random weights, and the token that it must not say to talk for long."""

    path: Path
    end_token: int


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    from demo.random_model import TINY, write_random_model  # brings torch with it

    path = write_random_model(tmp_path_factory.mktemp("tiny"), TINY)
    return Tiny(path, Tokenizer.from_file(str(path / "tokenizer.json")).token_to_id("<|im_end|>"))


@pytest.mark.slow
@pytest.mark.parametrize("drain", [120, 0])
def test_sigterm_to_the_real_thing(tmp_path: Path, tiny: Tiny, drain: int) -> None:
    settings = {"model": str(tiny.path), "threads": "1", "allowed_private_hosts": ""}
    with (
        ServiceProcess(tmp_path, drain_timeout=str(drain), **settings) as service,
        httpx.Client(base_url=service.url, timeout=120, trust_env=False) as api,
    ):

        def meanwhile() -> None:
            os.kill(service.pid, signal.SIGTERM)
            if drain:
                new_requests_are_refused(api, ASKED)

        *chunks, last, done = in_mid_stream(api, _long_answer(service.url, tiny), meanwhile)
        assert exit_status(service.pid) == 0
        assert "Traceback" not in service.log.read_text()
    assert done == "[DONE]" and all("error" not in chunk for chunk in chunks)
    if drain:
        assert last["choices"][0]["finish_reason"] == "length"
    else:
        assert last["error"]["code"] == "engine_stopped"


def _long_answer(url: str, tiny: Tiny) -> dict[str, Any]:
    """A question about pages of the service's own whose answer takes its time."""
    sample = demo_samples()[0]
    return {
        "prompt": sample.question,
        "images": [url + path for path in sample.images],
        "max_tokens": 1000,
        "logit_bias": {str(tiny.end_token): -100},
        "stream": True,
    }


def exit_status(pid: int) -> int:
    """Wait for a child to end by itself, and leave it to its owner to collect."""
    look = os.WEXITED | os.WNOWAIT | os.WNOHANG
    eventually(lambda: os.waitid(os.P_PID, pid, look) is not None, "the process ends")
    end = os.waitid(os.P_PID, pid, look)
    assert end is not None and end.si_code == os.CLD_EXITED
    return end.si_status
