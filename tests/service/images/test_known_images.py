"""Known URLs are asked about, not downloaded again; and only their tenant knows them."""

from __future__ import annotations

import hashlib
import socket
from typing import Any

import pytest
from PIL import Image

from engine.messages import ImageInput
from service.errors import ImageError
from service.images.fetch import Validators
from service.images.known_images import KnownImage, SentKey, UploadIndex, UrlIndex, digest_of
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import data_url, encode, plain
from tests.service.serving import Answer, Host, http

RED, BLUE = plain((255, 0, 0)), plain((0, 0, 255))


def revalidating(body: bytes, tag: str) -> Answer:
    """A host that knows its picture by `tag`."""

    def answer(connection: socket.socket, head: str) -> None:
        known = f'if-none-match: "{tag}"' in head.lower()
        reply = http(b"", status="304 Not Modified") if known else http(body, f'etag: "{tag}"')
        reply(connection, head)

    return answer


def ask(url: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": "What is it?", "images": [url], **fields}


def test_known_url_is_not_downloaded_again(start: Start, engine: FakeEngine, host: Host) -> None:
    api = start()
    url = host.serves("/a.png", revalidating(RED, "one"))
    for _ in range(2):
        api.post("/v1/chat", json=ask(url)).raise_for_status()
    first, second = engine.requests
    assert first.images == second.images
    text = api.get("/metrics").text
    assert "conduit_image_not_modified_total 1.0" in text
    assert "conduit_image_decode_seconds_count 1.0" in text


def test_changed_picture_is_seen(start: Start, engine: FakeEngine, host: Host) -> None:
    api = start()
    for body, tag in ((RED, "one"), (BLUE, "two")):
        api.post("/v1/chat", json=ask(host.serves("/a.png", revalidating(body, tag)))).raise_for_status()
    assert [request.images[0].pixels[:3] for request in engine.requests] == [b"\xff\0\0", b"\0\0\xff"]


def test_d6_index_is_per_tenant_and_salt(start: Start, host: Host) -> None:
    api = start(api_keys="alice:sk-alice-1,bob:sk-bob-12")
    url = host.serves("/a.png", revalidating(RED, "one"))
    for key, fields in (("sk-alice-1", {}), ("sk-bob-12", {}), ("sk-alice-1", {"cache_salt": "x"})):
        headers = {"authorization": f"Bearer {key}"}
        api.post("/v1/chat", json=ask(url, **fields), headers=headers).raise_for_status()
    assert not any("if-none-match" in head for head in host.heads)


def test_index_may_be_switched_off(start: Start, host: Host) -> None:
    api = start(url_cache_bytes=0)
    url = host.serves("/a.png", revalidating(RED, "one"))
    for _ in range(2):
        api.post("/v1/chat", json=ask(url)).raise_for_status()
    assert not any("if-none-match" in head for head in host.heads)


def _known(size: int, tag: str | None = "x") -> KnownImage:
    return KnownImage(Validators("u", tag), ImageInput(b"d", size // 3, 1, bytes(size)))


def test_least_recently_used_goes_first() -> None:
    index = UrlIndex(3 * (3000 + 1024))
    for url in "abc":
        index.put("t", url, _known(3000))
    assert index.get("t", "a") is not None
    index.put("t", "d", _known(3000))
    assert [index.get("t", url) is not None for url in "abcd"] == [True, False, True, True]
    index.put("t", "a", _known(3000))
    assert all(index.get("t", url) for url in "acd"), "replacing does not count twice"


def test_what_cannot_be_kept_is_forgotten() -> None:
    index = UrlIndex(10_000)
    index.put("t", "a", _known(300))
    index.put("t", "a", _known(300, tag=None))
    assert index.get("t", "a") is None
    index.put("t", "b", _known(30_000))
    assert index.get("t", "b") is None


FILE = SentKey("file", digest_of(b"file"))


def test_a_repeated_upload_is_decoded_once_per_tenant_and_way_of_reading() -> None:
    index = UploadIndex(10_000)
    image = ImageInput(b"d" * 32, 10, 10, bytes(300))
    assert index.find("a", FILE) is None
    assert [index.find_or_decode("a", FILE, lambda: image)[1] for _ in range(2)] == [False, True]
    assert index.find("a", FILE) is image
    others = (
        ("b", FILE),
        ("a", SentKey("file", digest_of(b"other"))),
        ("a", SentKey("base64", FILE.digest)),
        ("a", SentKey("data URL", FILE.digest)),
    )
    for tenant, sent in others:
        assert index.find(tenant, sent) is None
        assert not index.find_or_decode(tenant, sent, lambda: image)[1]


def test_uploads_beyond_the_budget_are_forgotten() -> None:
    index = UploadIndex(2000)
    image = ImageInput(b"d" * 32, 10, 10, bytes(300))
    first, second = (SentKey("file", digest) for digest in (b"1", b"2"))
    for sent in (first, second):
        index.find_or_decode("a", sent, lambda: image)
    assert not index.find_or_decode("a", first, lambda: image)[1]


def test_a_file_that_cannot_be_decoded_is_not_remembered() -> None:
    index = UploadIndex(2000)

    def fail() -> ImageInput:
        raise ImageError("invalid_image", "it is broken.")

    for _ in range(2):
        with pytest.raises(ImageError):
            index.find_or_decode("a", FILE, fail)


def test_a_digest_is_that_of_the_whole_text() -> None:
    for length in (0, 1, 1 << 20, (1 << 20) + 1):
        text = "\u00e9" * length
        assert digest_of(text) == hashlib.sha256(text.encode()).digest()
    assert digest_of("\ud800") != digest_of("\ud801"), "half of a character is still told apart"


@pytest.mark.parametrize("edge", [20, 400], ids=["small", "large"])
def test_a_repeated_upload_is_known_as_a_data_url_and_as_base64(
    start: Start, engine: FakeEngine, edge: int
) -> None:
    api = start(decode_concurrency=1)
    url = data_url(encode(Image.effect_noise((edge, edge), 60).convert("RGB"), "PNG"))
    source = {"type": "base64", "data": url.partition(",")[2]}
    block = {"role": "user", "content": [{"type": "image", "source": source}]}
    for asked in (ask(url), ask(url), {"messages": [block]}, {"messages": [block]}):
        api.post("/v1/chat", json=asked).raise_for_status()
    assert len({request.images[0] for request in engine.requests}) == 1
    assert "conduit_image_decode_seconds_count 2.0" in api.get("/metrics").text


def test_f12_a_text_means_the_same_cold_and_warm(start: Start) -> None:
    """A data URL where base64 belongs is refused, whatever was asked before."""
    url = data_url(RED)
    source = {"type": "base64", "data": url}
    in_base64 = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    api = start()
    statuses = [
        api.post("/v1/chat", json=body).status_code for body in (in_base64, ask(url), in_base64, ask(url))
    ]
    assert statuses == [400, 200, 400, 200]
    bare = url.partition(",")[2]
    source["data"] = bare
    statuses = [
        api.post("/v1/chat", json=body).status_code for body in (ask(bare), in_base64, ask(bare), in_base64)
    ]
    assert statuses == [400, 200, 400, 200]


def test_d6_an_upload_is_known_to_its_tenant_and_salt_only(start: Start, engine: FakeEngine) -> None:
    """What another tenant sent is decoded again: nobody learns from the time that it was here."""
    api = start(api_keys="alice:sk-alice-1,bob:sk-bob-12", public_metrics=True)
    url = data_url(RED)
    for key, fields in (("sk-alice-1", {}), ("sk-bob-12", {}), ("sk-alice-1", {"cache_salt": "x"})):
        headers = {"authorization": f"Bearer {key}"}
        for _ in range(2):
            api.post("/v1/chat", json=ask(url, **fields), headers=headers).raise_for_status()
    assert "conduit_image_decode_seconds_count 3.0" in api.get("/metrics").text
