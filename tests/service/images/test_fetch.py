"""Groups B and D of the public faults that are about URLs: how much is fetched, for how long, and what is kept."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import subprocess
import threading
import zlib
from pathlib import Path
from typing import Any

import anyio
import h11
import httpcore
import pytest

from service.http.admission import Shared
from service.images import fetch as fetching
from service.images.addresses import HostPolicy, SystemResolver
from service.images.fetch import Fetched, Fetcher, Validators
from tests.service.images.fetching import Names, fetch, refusal
from tests.service.images.pictures import plain
from tests.service.serving import Answer, Host, eventually, http, redirect

PNG = plain()


def test_bytes_arrive_and_the_host_sees_no_secrets(host: Host) -> None:
    assert fetch(host.serves("/a.png?size=2", PNG)) == PNG
    (head,) = host.heads
    assert head.startswith("GET /a.png?size=2 HTTP/1.1\r\n")
    lower = head.lower()
    assert f"host: 127.0.0.1:{host.port}\r\n" in lower
    assert "accept-encoding: identity" in lower
    assert not any(name in lower for name in ("cookie", "authorization", "referer"))


def test_d1_redirects_are_judged_anew(host: Host) -> None:
    host.serves("/png", PNG)
    names = Names({"public.test": ["127.0.0.1"], "inside.test": ["127.0.0.1"]})
    host.serves("/inside", redirect(host.url("/png", "inside.test")))
    host.serves("/file", redirect("file:///etc/hostname"))
    host.serves("/metadata", redirect("http://169.254.169.254/"))
    host.serves("/userinfo", redirect("http://a:b@127.0.0.1/"))
    names.table["169.254.169.254"] = ["169.254.169.254"]
    for path in ("/inside", "/file", "/metadata", "/userinfo"):
        error = refusal(host.url(path, "public.test"), resolver=names, private=("public.test",))
        assert error.code in {"image_url_blocked", "invalid_image_url"}, path
    assert not any(head.startswith("GET /png") for head in host.heads)


def test_three_redirects_are_followed_and_not_four(host: Host) -> None:
    host.serves("/0", PNG)
    for i in range(1, 5):
        host.serves(f"/{i}", redirect(f"/{i - 1}"))
    assert fetch(host.url("/3")) == PNG
    assert refusal(host.url("/4")).code == "image_fetch_failed"
    host.serves("/nowhere", http(b"", status="302 Found"))
    assert refusal(host.url("/nowhere")).code == "image_fetch_failed"


def test_b18_nothing_else_than_http_is_opened(host: Host) -> None:
    for url in (
        "ftp://127.0.0.1/a.png",
        "file:///etc/hostname",
        "gopher://127.0.0.1/",
        "http://",
        "http:///a",
    ):
        assert refusal(url).code in {"invalid_image_url", "image_url_blocked"}, url


@pytest.mark.parametrize(
    "status", ["404 Not Found", "500 Oops", "204 No Content", "206 Partial Content", "304 Not Modified"]
)
def test_other_statuses_are_failures(host: Host, status: str) -> None:
    url = host.serves("/a.png", http(b"", status=status))
    error = refusal(url)
    assert error.code == "image_fetch_failed" and status[:3] in error.message


def test_d4_declared_length_over_the_cap_is_refused_unread(host: Host) -> None:
    url = host.serves("/a.png", http(b"x", "content-length: 100001", length=False))
    assert refusal(url).code == "image_too_large"


def test_d4_endless_body_is_cut_at_the_cap(host: Host) -> None:
    sent = []

    def endless(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while not host.stopping.is_set():
            connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            sent.append(4096)

    assert refusal(host.serves("/a.png", endless)).code == "image_too_large"
    eventually(lambda: not _growing(sent), "the connection is closed")


def _growing(sent: list[int]) -> bool:
    before = len(sent)
    threading.Event().wait(0.05)
    return len(sent) > before


def test_d4_slow_body_ends_at_the_total_deadline(host: Host) -> None:
    def drip(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not host.stopping.wait(0.05):
            connection.sendall(b"x")

    assert refusal(host.serves("/a.png", drip), timeout=0.4).code == "image_fetch_timeout"


def test_d4_slow_head_ends_at_the_total_deadline(host: Host) -> None:
    def drip(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not host.stopping.wait(0.05):
            connection.sendall(b"x: y\r\n")

    assert refusal(host.serves("/a.png", drip), timeout=0.4).code == "image_fetch_timeout"


def test_d4_gzip_bomb_is_not_unpacked(host: Host) -> None:
    url = host.serves("/a.png", http(gzip.compress(b"\0" * 10_000_000), "content-encoding: gzip"))
    assert refusal(url).code == "image_fetch_failed"


def test_short_body_and_garbage_are_failures(host: Host) -> None:
    assert (
        refusal(host.serves("/short", http(b"abc", "content-length: 10", length=False))).code
        == "image_fetch_failed"
    )
    assert (
        refusal(host.serves("/garbage", lambda c, _: c.sendall(b"hello\r\n\r\n"))).code
        == "image_fetch_failed"
    )
    assert refusal(host.serves("/closed", lambda c, _: c.close())).code == "image_fetch_failed"
    assert refusal(host.serves("/head", lambda c, _: c.sendall(b"x" * 300_000))).code == "image_fetch_failed"


def test_unreachable_and_unknown_hosts_are_failures() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    assert refusal(f"http://127.0.0.1:{port}/").code == "image_fetch_failed"
    assert refusal("http://nowhere.test/", resolver=Names()).code == "image_fetch_failed"


def test_validators_are_sent_and_a_304_needs_no_body(host: Host) -> None:
    policy = HostPolicy((), ("127.0.0.1",), SystemResolver())
    fetcher = Fetcher(policy, 1000, 20.0, ssl.create_default_context(), Shared(4, several=True))
    url = host.serves("/a.png", http(b"", status="304 Not Modified"))
    known = Validators(url, '"abc"', "Mon, 01 Jan 2024 00:00:00 GMT")
    assert asyncio.run(fetcher.fetch(url, "", known)) == Fetched(None, known)
    assert 'if-none-match: "abc"' in host.heads[0] and "if-modified-since: Mon" in host.heads[0]
    other = host.serves("/b.png", http(PNG, 'etag: "new"'))
    assert asyncio.run(fetcher.fetch(other, "", known)) == Fetched(PNG, Validators(other, '"new"'))
    assert "if-none-match" not in host.heads[1], "marks of one URL mean nothing at another"
    for header in ("cache-control: private, no-store", 'etag: "\xe4"'):
        url = host.serves("/c.png", http(PNG, *(["etag: x"] if "no-store" in header else []), header))
        assert not asyncio.run(fetcher.fetch(url)).validators


def test_tls_checks_the_name_not_the_address(tmp_path: Path, host: Host) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=pictures.test", "-addext", "subjectAltName=DNS:pictures.test", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", cert, *names], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    seen: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: seen.append(name)
    client = ssl.create_default_context(cafile=str(cert))
    table = Names({"pictures.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=_serve_tls, args=(listener, server), daemon=True).start()
        options: dict[str, Any] = {
            "resolver": table,
            "private": ("pictures.test", "other.test"),
            "tls": client,
        }
        assert fetch(f"https://pictures.test:{port}/a.png", **options) == PNG
        assert refusal(f"https://other.test:{port}/a.png", **options).code == "image_fetch_failed"
    assert seen == ["pictures.test", "other.test"]


def _serve_tls(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(65536)
                http(PNG)(secure, "")
        except OSError:
            continue


ENCODINGS = [
    "identity",
    "identity, ",
    "Identity",
    "aws-chunked",
    "aws-chunked,identity",
    "",
    "utf-8",
    "binary",
    "br",
    "none",
]


@pytest.mark.parametrize("name", ENCODINGS)
def test_f18_an_encoding_that_was_not_used_does_not_matter(host: Host, name: str) -> None:
    assert fetch(host.serves("/a.png", http(PNG, f"content-encoding: {name}"))) == PNG


@pytest.mark.parametrize(
    "body", [gzip.compress(PNG), zlib.compress(PNG), b"\x8b" + PNG, b"400;chunk-signature=0\r\n" + PNG]
)
@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "aws-chunked", "identity, gzip"])
def test_f18_an_encoding_that_was_used_is_refused(host: Host, name: str, body: bytes) -> None:
    error = refusal(host.serves("/a.png", http(body, f"content-encoding: {name}")))
    assert (error.code, "encoded" in error.message) == ("image_fetch_failed", True)


def test_pieces_of_a_body_are_bounded_and_leave_the_loop_to_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte each, all there at once."""
    monkeypatch.setattr(fetching, "_MOST_PIECES", 2000)

    def crumbs(count: int) -> Answer:
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        return lambda connection, _: connection.sendall(head + b"1\r\nx\r\n" * count + b"0\r\n\r\n")

    assert fetch(host.serves("/few", crumbs(2000))) == b"x" * 2000
    assert refusal(host.serves("/many", crumbs(2001))).message == "its host sends it in too many pieces."

    async def watch() -> int:
        policy = HostPolicy((), ("127.0.0.1",), SystemResolver())
        fetcher = Fetcher(policy, 100_000, 20.0, ssl.create_default_context(), Shared(4, several=True))
        work = asyncio.create_task(fetcher.fetch(host.url("/few")))
        turns = 0
        while not work.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(watch()) >= 2000 // 32


FAULTS: list[Exception] = [
    OSError("broken"),
    ConnectionResetError(),
    ssl.SSLError("broken"),
    ssl.SSLCertVerificationError("broken"),
    anyio.BrokenResourceError(),
    anyio.ClosedResourceError(),
    anyio.EndOfStream(),
    h11.LocalProtocolError("broken"),
    h11.RemoteProtocolError("broken"),
    httpcore.ReadError("broken"),
    httpcore.UnsupportedProtocol("broken"),
    ValueError("broken"),
    UnicodeError("broken"),
    OverflowError("broken"),
    MemoryError(),
    RuntimeError("broken"),
    KeyError("broken"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("place", ["resolve", "connect", "request", "read"])
def test_whatever_is_raised_underneath_is_an_error_of_the_picture(
    host: Host, monkeypatch: pytest.MonkeyPatch, fault: Exception, place: str
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise fault

    names = Names({"pictures.test": ["127.0.0.1"]})
    url = host.url("/a.png", "pictures.test")
    host.serves("/a.png", PNG)
    if place == "resolve":
        monkeypatch.setattr(names, "resolve", broken)
    elif place == "connect":
        monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", broken)
    elif place == "request":
        monkeypatch.setattr(httpcore.AsyncHTTPConnection, "handle_async_request", broken)
    else:
        monkeypatch.setattr(Fetcher, "_body", broken)
    assert refusal(url, resolver=names, private=("pictures.test",)).code == "image_fetch_failed"
