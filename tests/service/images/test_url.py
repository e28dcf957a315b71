"""URLs as users and hosts write them: what is malformed is a 400, what is not is fetched as it was meant."""

from __future__ import annotations

import json

import httpx
import pytest

from service.errors import ImageError
from service.images.url import host_of, location_text, parse_url, port_of
from tests.service.images.fetching import Names, fetch, refusal
from tests.service.images.pictures import plain
from tests.service.serving import Host, http

PNG = plain()
MALFORMED = [
    "http://xn--a/",
    "http://xn--/",
    "http://xn--zn7c.com/",
    "http://xn--ls8h.test/",
    "http://\u2603.net/",
    "http://\u00ad/",
    "http://\uff41.test/",
    "http://\u0660.test/",
    "http://a..b/",
    "http://.../",
    "http://./",
    "http:///",
    "http://",
    "http:",
    "http:a.test",
    "http://:80/",
    "http://?a",
    "http://#a",
    "http://[/",
    "http://[::1/",
    "http://[]/",
    "http://[v1.a]/",
    "http://[1.2.3.4]/",
    "http://[::1]a/",
    "http://[::g]/",
    "http://256.256.256.256/",
    "http://%31%32%37.0.0.1/",
    "http://a b.test/",
    "http://a\tb.test/",
    "http://a\u0000b.test/",
    "http://a.test\\b/",
    "http://a.test:b/",
    "http://a.test:99999/",
    "http://a.test:65536/",
    "http://a.test:0/",
    "http://a.test:-1/",
    "http://a.test:80:80/",
    "http://a.test:" + "9" * 5000 + "/",
    "http://a.test/\ud800",
    "http://\ud800.test/",
    "http://a.test/\u0001",
    "http://a@b@c.test/",
    "http://" + "a" * 64 + ".test/",
    "http://" + "a." * 130 + "test/",
    "http://" + "a" * 9000,
    "http://user:pass@a.test/",
    "https://a.test:0x50/",
    "httpx://a.test/",
]


@pytest.mark.parametrize("url", MALFORMED, ids=lambda url: ascii(url)[:30])
def test_a_malformed_url_is_an_error_of_the_picture(url: str) -> None:
    error = refusal(url, resolver=Names(), private=())
    assert error.code in {"invalid_image_url", "image_url_blocked", "image_fetch_failed"}


@pytest.mark.parametrize("url", MALFORMED, ids=lambda url: ascii(url)[:30])
def test_a_malformed_redirect_is_an_error_of_the_picture(host: Host, url: str) -> None:
    def answer(connection: object, head: str) -> None:
        location = url.encode(errors="surrogatepass").replace(b"\0", b"%00")
        connection.sendall(  # type: ignore[attr-defined]
            b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: " + location + b"\r\n\r\n"
        )

    names = Names({"pictures.test": ["127.0.0.1"]})
    start = host.url("/a.png", "pictures.test")
    host.serves("/a.png", answer)
    error = refusal(start, resolver=names, private=("pictures.test",))
    assert error.code in {"invalid_image_url", "image_url_blocked", "image_fetch_failed"}


def test_a_malformed_url_is_a_400(api: httpx.Client) -> None:
    for url in MALFORMED:
        # A lone half of a character cannot be said in UTF-8, but in JSON.
        body = {"prompt": "x", "images": [url]}
        content = json.dumps(body).encode()
        response = api.post("/v1/chat", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, ascii(url)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://A.Test", "a.test", 80),
        ("https://a.test", "a.test", 443),
        ("http://a.test:8080/x", "a.test", 8080),
        ("http://a.test:443/x", "a.test", 443),
        ("http://a.test:65535/x", "a.test", 65535),
        ("http://b\u00fccher.test/", "xn--bcher-kva.test", 80),
        ("http://a\u3002test/", "a.test", 80),
        ("http://[2606:4700::1111]:81/", "2606:4700::1111", 81),
        ("  http://a.test/ \n", "a.test", 80),
        ("http://under_score.test/", "under_score.test", 80),
    ],
)
def test_good_urls(url: str, host: str, port: int) -> None:
    parsed = parse_url(url)
    assert (host_of(parsed), port_of(parsed)) == (host, port)


LOCATIONS = {
    "escaped": (b"/b%C3%A4r.png", "/b%C3%A4r.png"),
    "UTF-8": ("/b\u00e4r.png".encode(), "/b%C3%A4r.png"),
    "UTF-8 in a query": ("/b?q=\u732b&r=%20".encode(), "/b?q=%E7%8C%AB&r=%20"),
    "Latin-1": (b"/b\xe4r.png", "/b%E4r.png"),
    "both": (b"/b\xe4\xc3\xa4", "/b%E4%C3%A4"),
    "a space": (b"/a b", "/a%20b"),
    "relative": (b"c.png", "/x/c.png"),
    "up": (b"../c.png", "/c.png"),
    "a query only": (b"?a=1", "/x/start?a=1"),
    "another scheme's authority": (b"//{host}/d", "/d"),
}


@pytest.mark.parametrize(("location", "path"), LOCATIONS.values(), ids=LOCATIONS.keys())
def test_f17_a_redirect_is_followed_as_it_was_sent(host: Host, location: bytes, path: str) -> None:
    sent = location.replace(b"{host}", f"127.0.0.1:{host.port}".encode())

    def answer(connection: object, head: str) -> None:
        head_bytes = b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: " + sent + b"\r\n\r\n"
        connection.sendall(head_bytes)  # type: ignore[attr-defined]

    host.serves("/x/start", answer)
    host.serves(path, http(PNG))
    assert fetch(host.url("/x/start")) == PNG
    assert host.heads[1].split(" ")[1] == path


def test_f17_a_host_in_utf_8_is_looked_up_in_ascii() -> None:
    base = parse_url("http://a.test/")
    assert host_of(parse_url(location_text("//b\u00fccher.test/".encode()), base)) == "xn--bcher-kva.test"
    with pytest.raises(ImageError):
        parse_url(location_text(b"//b\xfccher.test/"), base)
