"""What is typed wrongly, and what is not there: a reason, a status, never a traceback."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import httpx
import pytest

from service.cli.client import CommandFailed, Service, address
from service.settings import Settings, SettingsError
from service.version import VERSION
from tests.service.cli.running import conduit, refused
from tests.service.fake_engine import FakeEngine

NOWHERE = "http://127.0.0.1:9"
ROOT = Path(__file__).parents[3]


def test_the_command_is_installed_as_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"conduit": "service.cli.app:main"}
    command = Path(sys.executable).with_name("conduit")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, cwd="/", timeout=60)
    assert (done.returncode, done.stdout) == (0, f"conduit {VERSION}\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Usage"),
        (("cache",), "Usage"),
        (("cache", "evict", "--bytes", "lots"), "not a size: lots"),
        (("cache", "evict", "--bytes=-1"), "not a size: -1"),
        (("cache", "evict", "--older-than", "-1"), "not a number of seconds: -1"),
        (("cache", "pin", "abcd", "--ttl", "inf"), "not a number of seconds: inf"),
        (("chat", "--mode", "never", "x"), "never"),
        (("chat", "--refresh-ratio", "nan", "x"), "not a number from 0 to 1: nan"),
        (("chat", "--refresh-ratio", "1.5", "x"), "not a number from 0 to 1: 1.5"),
        (("chat", "--max-tokens", "0", "x"), "max-tokens"),
        (("bench",), "IMAGE"),
        (("bench", "x", "--users", "65"), "64"),
        (("explain", "x"), "--image"),
        (("explain", "-i", "x", "--layer", "heat", "x"), "heat"),
        (("chat", "--no-such-option"), "--no-such-option"),
        (("fly",), "fly"),
    ],
)
def test_what_is_no_command_line_is_a_usage_error(arguments: tuple[str, ...], says: str) -> None:
    done = conduit(*arguments, TERMINAL_WIDTH="200")
    assert done.exit_code == 2 and says in done.output


@pytest.mark.parametrize("arguments", [("cache", "stats"), ("chat", "x"), ("health",), ("models",)])
def test_who_is_not_there_is_named(arguments: tuple[str, ...]) -> None:
    done = conduit(*arguments, "--url", f"{NOWHERE}/v1")
    assert done.exit_code == 1 and f"No answer from {NOWHERE}: " in done.stderr


@pytest.mark.parametrize("key", ["ключ", "a b", "new\nline", "\udcff"])
def test_a_key_that_is_none_is_said_not_sent(key: str) -> None:
    done = conduit("cache", "stats", "--key", key, "--url", NOWHERE)
    assert done.exit_code == 1 and "The key holds signs that no key has" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("chat", "\udcff"),
        ("chat", "-i", "a\0b", "x"),
        ("chat", "-i", "/", "x"),
        ("chat", "--salt", "\udcff", "x"),
        ("cache", "quota", "\udcff"),
        ("cache", "ls", "--tenant", "\udcff"),
        ("chat", "--policy", "nonsense", "x"),
        ("chat", "-i", "/no/such/file.png", "x"),
    ],
)
def test_odd_arguments_are_refused_with_a_reason(api: httpx.Client, arguments: tuple[str, ...]) -> None:
    assert refused(api, *arguments).startswith("error: ")


@pytest.mark.parametrize(
    "text", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", " h:1 ", "h:1/v1"]
)
def test_an_address_may_be_written_in_many_ways(text: str) -> None:
    assert address(text) == "http://h:1"


def test_an_address_behind_a_path_keeps_it() -> None:
    assert address("https://example.org/conduit/v1/") == "https://example.org/conduit"
    assert address("") == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "text", ["ftp://h", "http://", "http://h:port", "http://h:99999999", "h?x=1", "http://[", "\udcff"]
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(CommandFailed, match="is no address of a service"):
        address(text)
    assert conduit("health", "--url", text).exit_code == 1


class _Other(socketserver.StreamRequestHandler):
    """Some other service: what it answers is no answer of ours."""

    answer = b""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        self.wfile.write(self.answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n[]",
        b"HTTP/1.1 500 Oops\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b'HTTP/1.1 404 No\r\nconnection: close\r\ncontent-length: 15\r\n\r\n{"error":"gone"}'[:-1],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
def test_another_service_at_the_address_is_no_traceback(answer: bytes) -> None:
    handler = type("Other", (_Other,), {"answer": answer})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for arguments in (("health",), ("models",), ("cache", "stats"), ("cache", "ls"), ("chat", "x")):
            done = conduit(*arguments, "--url", url)
            assert done.exit_code == 1 and url in done.stderr, (arguments, done.output)
        server.shutdown()


def test_interrupting_a_command_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Service, "call", interrupted)
    assert conduit("cache", "stats").exit_code == 130


def test_a_proxy_that_cannot_be_one_is_told() -> None:
    done = conduit("health", "--url", NOWHERE, HTTP_PROXY="nonsense://x", NO_PROXY="", no_proxy="")
    assert done.exit_code == 1 and "proxy" in done.stderr


def test_a_reader_that_leaves_is_no_traceback(api: httpx.Client, engine: FakeEngine) -> None:
    for i in range(500):
        engine.cache.put(f"{i:064x}")
    code = "import service.cli.app as a; a.main()"
    shell = f'"{sys.executable}" -c "{code}" cache ls --url {api.base_url} | head -1'
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.startswith("key") and "Traceback" not in done.stderr


def test_serve_hands_its_options_to_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Settings:
        raise SettingsError("not today")

    names = ("MODEL", "HOST", "PORT", "DEMO")
    for name in names:
        monkeypatch.setenv(f"CONDUIT_{name}", "from before")
    monkeypatch.setattr("service.__main__.load_settings", refuse)
    done = conduit("serve", "some/model", "--port", "9000", "--demo", "--host", "")
    assert done.exit_code == 2
    assert [os.environ[f"CONDUIT_{name}"] for name in names] == ["some/model", "", "9000", "true"]


def test_a_shell_can_complete_it() -> None:
    environment = {"_CONDUIT_COMPLETE": "complete_bash", "COMP_WORDS": "conduit ca", "COMP_CWORD": "1"}
    assert "cache" in conduit(**environment).stdout
