"""Pictures over HTTP: what the user of the service sees of fetching and decoding."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from tests.service.asking import refused
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import data_url, noisy, plain
from tests.service.serving import Host, eventually, http

PNG = plain()


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
