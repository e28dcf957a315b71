"""D5 and F11 at size: many large pictures and a host that hangs, while the service keeps answering."""

from __future__ import annotations

import threading

import httpx
import pytest
from PIL import Image

from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import data_url, encode
from tests.service.serving import Host, eventually


@pytest.mark.slow
def test_f11_health_answers_while_32_clients_send_4_megapixel_pictures(
    start: Start, engine: FakeEngine, host: Host
) -> None:
    api = start(fetch_timeout=3600.0)
    image = Image.effect_noise((2000, 2000), 60).convert("RGB")
    pictures = [data_url(encode(image, "JPEG", quality=quality)) for quality in (50, 55, 60, 65)]
    engine.remember = False  # that would be 1.5 GB of pixels
    hanging = host.hangs("/slow")
    statuses: list[int] = []

    def ask(images: list[str]) -> None:
        with httpx.Client(base_url=api.base_url, timeout=300, trust_env=False) as client:
            statuses.append(client.post("/v1/chat", json={"prompt": "x", "images": images}).status_code)

    clients = [threading.Thread(target=ask, args=(pictures,)) for _ in range(32)]
    stuck = threading.Thread(target=ask, args=([hanging],))
    for client in (stuck, *clients):
        client.start()
    answered = 0
    while any(client.is_alive() for client in clients):
        assert api.get("/livez").status_code == 200
        answered += 1
    assert answered > 3, "health was answered while the pictures were decoded"
    assert statuses == [200] * 32, "all but the one that waits for its host"
    assert engine.submitted == 32
    host.stopping.set()
    stuck.join()
    eventually(lambda: len(statuses) == 33, "the last one is told")
    assert statuses[-1] == 400
