"""The start of the service: what cannot work is found first and told in one line, what is risky is said."""

from __future__ import annotations

import errno
import gc
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.errors import UnsupportedModel
from service.__main__ import serve
from service.listen import bound_sockets
from service.remarks import remarks
from service.settings import Settings, SettingsError
from service.shipped import limits_of
from tests.service.conftest import Start

ROOT_MODEL = "models/page-reader"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`serve` sets up the logging of the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def held_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield held.getsockname()[1]


def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: Exception, **settings: str
) -> str:
    """The one line that `serve` writes when it does not start; building the app fails."""

    def build(_: Settings) -> Any:
        raise failing

    monkeypatch.setattr("service.__main__.build_app", build)
    for name, value in settings.items():
        monkeypatch.setenv(f"CONDUIT_{name.upper()}", value)
    assert serve() == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "cannot start" in line]
    return line


def test_u9_a_port_in_use_is_found_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], held_port: int
) -> None:
    loaded = AssertionError("the model was loaded first")
    line = refusal(monkeypatch, capsys, loaded, port=str(held_port))
    assert line == (
        f"conduit cannot start: CONDUIT_HOST, CONDUIT_PORT: cannot listen on 127.0.0.1, port {held_port}: "
        "address already in use"
    )


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a" * 300])
def test_u9_a_host_that_is_not_here_is_found_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    line = refusal(monkeypatch, capsys, AssertionError("loaded"), host=host, port="0")
    assert "CONDUIT_HOST" in line and host in line


def test_u9_what_the_engine_cannot_serve_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(monkeypatch, capsys, UnsupportedModel("CONDUIT_DEVICE: there is no cuda here"), port="0")
    assert line == "conduit cannot start: CONDUIT_DEVICE: there is no cuda here"


def test_ctrl_c_while_it_starts_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Settings) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.__main__.build_app", interrupted)
    monkeypatch.setenv("CONDUIT_PORT", "0")
    assert serve() == 130


def test_a_port_that_was_just_left_can_be_taken_again() -> None:
    """Connections that the service closed linger for a minute after it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            client.recv(1)
    with bound_sockets("127.0.0.1", port) as sockets:
        assert sockets[0].getsockname()[1] == port


def test_the_app_is_told_the_port_that_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []

    def build(settings: Settings) -> Any:
        ports.append(settings.port)
        raise UnsupportedModel("enough")

    monkeypatch.setattr("service.__main__.build_app", build)
    monkeypatch.setenv("CONDUIT_PORT", "0")
    assert serve() == 2
    assert ports[0] > 0


def test_all_addresses_of_a_name_are_taken_or_none() -> None:
    with bound_sockets("localhost", 0) as sockets:
        assert sockets and {one.getsockname()[0] for one in sockets} <= {"127.0.0.1", "::1"}
    assert {one.fileno() for one in sockets} == {-1}


def test_an_address_family_that_is_missing_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    plain = socket.socket

    def without_six(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return plain(family, kind)

    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **options: both)
    monkeypatch.setattr("service.listen.socket.socket", without_six)
    with bound_sockets("localhost", 0) as sockets:
        assert [one.family for one in sockets] == [socket.AF_INET]
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **options: both[:1])
    with pytest.raises(SettingsError, match="address family not supported"), bound_sockets("localhost", 0):
        pass


API_KEYS = {"api_keys": "alice:sk-alice-1"}
ADMIN_KEY = {"admin_key": "sk-operator"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        ({"host": "localhost"}, []),
        ({"host": "::1"}, []),
        ({"host": "127.3.2.1"}, []),
        ({"host": "0.0.0.0"}, ["no key is set and the service listens on 0.0.0.0"]),
        ({"host": "::"}, ["no key is set and the service listens on ::"]),
        ({"host": "conduit.example"}, ["no key is set"]),
        ({"host": "0.0.0.0", **ADMIN_KEY}, ["only CONDUIT_ADMIN_KEY is set"]),
        (ADMIN_KEY, ["only CONDUIT_ADMIN_KEY is set"]),
        (API_KEYS, ["nobody may use /v1/cache/ and /metrics"]),
        ({**API_KEYS, "public_metrics": True}, ["nobody may use /v1/cache/"]),
        ({"host": "0.0.0.0", **API_KEYS, **ADMIN_KEY}, []),
    ],
)
def test_u7_u9_what_is_open_or_closed_by_omission_is_said(settings: dict[str, Any], said: list[str]) -> None:
    found = list(remarks(Settings(**settings)))
    assert len(found) == len(said)
    assert all(expected in text for expected, text in zip(said, found, strict=True))
    assert "sk-" not in "".join(found)
    if settings.get("public_metrics"):
        assert "metrics" not in found[0]


def test_the_start_says_what_is_risky_and_what_the_shipped_model_can_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal_line = {"host": "0.0.0.0", "port": "0", "log_format": "text"}

    def build(_: Settings) -> Any:
        raise UnsupportedModel("enough")

    monkeypatch.setattr("service.__main__.build_app", build)
    for name, value in refusal_line.items():
        monkeypatch.setenv(f"CONDUIT_{name.upper()}", value)
    assert serve() == 2
    said = capsys.readouterr().err
    assert "WARNING conduit.start: no key is set" in said
    assert (
        "WARNING conduit.start: The small model that ships: it reads synthetic pages of 6 x 6 cells" in said
    )
    monkeypatch.setenv("CONDUIT_MODEL", "some/model")
    assert serve() == 2
    assert "synthetic" not in capsys.readouterr().err


def test_models_and_the_page_say_what_the_shipped_model_can_do(start: Start) -> None:
    limits = limits_of(ROOT_MODEL)
    assert limits is not None and "synthetic pages" in limits
    assert limits_of(str(os.path.abspath(ROOT_MODEL))) == limits
    assert limits_of("Qwen/Qwen2.5-VL-3B-Instruct") is limits_of("models") is None
    for model, described in ((ROOT_MODEL, limits), ("some/model", None)):
        api: httpx.Client = start(model=model)
        assert api.get("/v1/models").json()["data"][0]["description"] == described
        assert '<script type="module" src="/page/app.js"></script>' in api.get("/").text
        assert "model.description" in api.get("/page/app.js").text


def test_what_is_loaded_before_it_serves_is_nothing_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would hold the loop for as long as it looks."""
    frozen: list[int] = []

    class Server:
        def __init__(self, *_: object) -> None:
            pass

        def run(self, _: object) -> None:
            frozen.append(gc.get_freeze_count())

    monkeypatch.setattr("service.__main__.build_app", lambda _: None)
    monkeypatch.setattr("service.__main__.DrainingServer", Server)
    monkeypatch.setenv("CONDUIT_PORT", "0")
    try:
        assert serve() == 0
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000
