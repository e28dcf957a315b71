"""Groups B and D of the public faults that are about URLs: what is fetched, from where, and how much of
it."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import socket
import ssl
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import ImageError
from service.images.addresses import HostPolicy, SystemResolver, is_public
from service.images.fetch import Fetched, Fetcher, Validators
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import data_url, noisy, plain
from tests.service.serving import Host, eventually, http, redirect
from tests.service.test_chat_refusals import refused

PNG = plain()


class Names:
    """A resolver with a table; counts how often it is asked."""

    def __init__(self, table: dict[str, Sequence[str]] | None = None) -> None:
        self.table = table or {}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host in self.table:
            return self.table[host]
        raise OSError("no such host")

    def close(self) -> None: ...


def fetch(
    url: str,
    resolver: Any = None,
    allowed: Sequence[str] = (),
    private: Sequence[str] = ("127.0.0.1",),
    **limits: Any,
) -> bytes:
    policy = HostPolicy(allowed, private, resolver or SystemResolver())
    options = {"max_bytes": 100_000, "timeout": 20.0, "tls": ssl.create_default_context(), **limits}
    data = asyncio.run(Fetcher(policy, **options).fetch(url)).data
    assert data is not None
    return data


def refusal(url: str, **options: Any) -> ImageError:
    with pytest.raises(ImageError) as caught:
        fetch(url, **options)
    assert "http" not in caught.value.message.replace("http, https", ""), "no URL in a message"
    return caught.value


def test_bytes_arrive_and_the_host_sees_no_secrets(host: Host) -> None:
    assert fetch(host.serves("/a.png?size=2", PNG)) == PNG
    (head,) = host.heads
    assert head.startswith("GET /a.png?size=2 HTTP/1.1\r\n")
    lower = head.lower()
    assert f"host: 127.0.0.1:{host.port}\r\n" in lower
    assert "accept-encoding: identity" in lower
    assert not any(name in lower for name in ("cookie", "authorization", "referer"))


BLOCKED = [
    "http://127.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://localhost:{port}/",
    "http://localhost.:{port}/",
    "http://LOCALHOST:{port}/",
    "http://0.0.0.0:{port}/",
    "http://[::1]:{port}/",
    "http://[::]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fe80::1%25lo]:{port}/",
    "http://10.0.0.1/",
    "http://192.168.0.1/",
    "http://172.16.0.1/",
    "http://100.64.0.1/",
    "http://user@127.0.0.1:{port}/",
    "http://example.com:secret@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@example.com/",
]


@pytest.mark.parametrize("url", BLOCKED)
def test_d1_private_addresses_in_every_spelling(host: Host, url: str) -> None:
    error = refusal(url.format(port=host.port), private=())
    assert error.code in {"image_url_blocked", "invalid_image_url"}
    assert host.heads == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("::ffff:10.0.0.1", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
        ("fec0::1", False),
        ("fc00::1", False),
        ("::8.8.8.8", False),
        ("64:ff9b::808:808", False),
        ("2002:808:808::1", False),
        ("2001:db8::1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("255.255.255.255", False),
    ],
)
def test_d1_what_is_public(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


def test_d1_one_private_answer_among_public_ones_blocks() -> None:
    names = Names({"both.test": ["8.8.8.8", "127.0.0.1"]})
    assert refusal("http://both.test/", resolver=names, private=()).code == "image_url_blocked"


def test_d1_name_is_resolved_once_and_that_address_dialled(host: Host) -> None:
    host.serves("/a.png", PNG)
    names = Names({"pictures.test": ["127.0.0.1"]})
    url = host.url("/a.png", "pictures.test")
    assert fetch(url, resolver=names, private=("pictures.test",)) == PNG
    assert names.asked == ["pictures.test"]
    assert f"host: pictures.test:{host.port}" in host.heads[0].lower()


def test_d1_second_address_is_tried_when_the_first_is_down(host: Host) -> None:
    host.serves("/a.png", PNG)
    names = Names({"pictures.test": ["127.0.0.2", "127.0.0.1"]})
    assert fetch(host.url("/a.png", "pictures.test"), resolver=names, private=("pictures.test",)) == PNG


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


def test_operators_lists(host: Host) -> None:
    host.serves("/a.png", PNG)
    url = host.url("/a.png")
    names = Names({"127.0.0.1": ["127.0.0.1"], "a.cdn.test": ["8.8.8.8"], "other.test": ["8.8.8.8"]})
    assert fetch(url, private=(f"127.0.0.1:{host.port}",)) == PNG
    assert refusal(url, private=("127.0.0.1:1",)).code == "image_url_blocked"
    assert fetch(url, allowed=("*.cdn.test",)) == PNG, "a listed private host needs no second listing"
    policy = HostPolicy(("*.cdn.test",), (), names)
    assert asyncio.run(policy.addresses("a.cdn.test", 80)) == ["8.8.8.8"]
    for name in ("other.test", "cdn.test", "evilcdn.test"):
        with pytest.raises(ImageError):
            asyncio.run(policy.addresses(name, 80))


def test_validators_are_sent_and_a_304_needs_no_body(host: Host) -> None:
    policy = HostPolicy((), ("127.0.0.1",), SystemResolver())
    fetcher = Fetcher(policy, 1000, 20.0, ssl.create_default_context())
    url = host.serves("/a.png", http(b"", status="304 Not Modified"))
    known = Validators(url, '"abc"', "Mon, 01 Jan 2024 00:00:00 GMT")
    assert asyncio.run(fetcher.fetch(url, known)) == Fetched(None, known)
    assert 'if-none-match: "abc"' in host.heads[0] and "if-modified-since: Mon" in host.heads[0]
    other = host.serves("/b.png", http(PNG, 'etag: "new"'))
    assert asyncio.run(fetcher.fetch(other, known)) == Fetched(PNG, Validators(other, '"new"'))
    assert "if-none-match" not in host.heads[1], "marks of one URL mean nothing at another"
    for header in ("cache-control: private, no-store", 'etag: "\xe4"'):
        url = host.serves("/c.png", http(PNG, *(["etag: x"] if "no-store" in header else []), header))
        assert not asyncio.run(fetcher.fetch(url)).validators


def test_international_names_are_resolved_in_ascii(host: Host) -> None:
    host.serves("/a.png", PNG)
    names = Names({"xn--bcher-kva.test": ["127.0.0.1"]})
    assert (
        fetch(host.url("/a.png", "b\u00fccher.test"), resolver=names, private=("xn--bcher-kva.test",)) == PNG
    )
    assert names.asked == ["xn--bcher-kva.test"]


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


# Over HTTP: what the user of the service sees.


def ask(*images: str) -> dict[str, Any]:
    return {"prompt": "What is it?", "images": list(images)}


def test_url_images_are_fetched_decoded_and_asked_about(
    api: httpx.Client, engine: FakeEngine, host: Host
) -> None:
    url = host.serves("/a.gif", http(noisy(kind="JPEG"), "content-type: text/plain"))
    api.post("/v1/chat", json=ask(url, data_url(PNG))).raise_for_status()
    assert [(i.width, i.height) for i in engine.requests[0].images] == [(64, 64), (8, 6)]


@pytest.mark.parametrize(
    "text",
    ["/etc/hostname", "../../x.png", "file:///etc/hostname", "C:\\x.png", "", "iVBORw0KGgo=", "//127.0.0.1/"],
)
def test_b18_strings_are_never_opened_as_paths(api: httpx.Client, engine: FakeEngine, text: str) -> None:
    error = refused(api.post("/v1/chat", json=ask(data_url(PNG), text)), 400, "invalid_image_url")
    assert error["param"] == "images[1]" and error["message"].startswith("Image 2:")
    assert engine.requests == []


def test_d1_blocked_url_does_not_repeat_its_token(start: Any, host: Host) -> None:
    url = host.serves("/a.png?token=hunter2", PNG)
    response = start(allowed_private_hosts=()).post("/v1/chat", json=ask(url))
    refused(response, 400, "image_url_blocked")
    assert "hunter2" not in response.text and "127.0.0.1" not in response.text
    assert host.heads == []


def test_failures_are_400s_that_name_the_image(api: httpx.Client, host: Host) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": host.url("/none")}}]}]
    error = refused(api.post("/v1/chat", json={"messages": messages}), 400, "image_fetch_failed")
    assert error["param"] == "messages[0].content[0].image_url.url"
    garbage = host.serves("/garbage", b"not an image")
    refused(api.post("/v1/chat", json={**ask(garbage), "stream": True}), 400, "invalid_image")
    assert 'conduit_image_failures_total{reason="invalid_image"}' in api.get("/metrics").text


def test_b1_pixels_of_a_request_are_bounded_in_all(start: Any) -> None:
    api = start(max_request_pixels=100)
    api.post("/v1/chat", json=ask(*[data_url(PNG)] * 3)).raise_for_status()
    blue = data_url(plain((0, 0, 255), (8, 7)))
    refused(api.post("/v1/chat", json=ask(data_url(PNG), blue)), 400, "image_too_large")


def test_d5_hanging_host_does_not_hold_up_others(start: Any, engine: FakeEngine, host: Host) -> None:
    api = start(fetch_timeout=30.0)
    url = host.hangs("/slow")
    statuses: list[int] = []
    with httpx.Client(base_url=api.base_url, timeout=60, trust_env=False) as patient:
        slow = [
            threading.Thread(
                target=lambda: statuses.append(patient.post("/v1/chat", json=ask(url)).status_code)
            )
            for _ in range(8)
        ]
        for thread in slow:
            thread.start()
        eventually(lambda: len(host.heads) >= 1, "the slow host is asked")
        assert api.get("/livez").status_code == 200
        assert api.post("/v1/chat", json=ask(data_url(PNG))).status_code == 200
        assert statuses == [], "the slow work is still pending"
        host.stopping.set()
        for thread in slow:
            thread.join()
    assert set(statuses) == {400}


def test_slow_host_is_a_400_of_its_own(start: Any, host: Host) -> None:
    response = start(fetch_timeout=0.2).post("/v1/chat", json=ask(host.hangs("/slow")))
    refused(response, 400, "image_fetch_timeout")
