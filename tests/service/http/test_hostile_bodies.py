"""H3 at size: thousands of bodies that somebody made up to hold the service up, and it does not notice them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from tests.service.http.stand import front_end, watched

MIB = 2**20
BODIES = 5000
LARGE = 40
LONGEST = 60 * MIB
Maker = Callable[[random.Random, int], bytes]


TEXTS = [b"a", b"\\n", b"\\u0041", b"\\u20ac", b"\\ud83d\\ude00", b" ", b"\\/", "é".encode(), "😀".encode()]


def text(rng: random.Random, size: int) -> bytes:
    piece = rng.choice(TEXTS)
    return b'"%s"' % (piece * (size // len(piece)))


def inside(begin: bytes, item: bytes, end: bytes) -> Maker:
    """`item` again and again; a `%d` in it is its number."""

    def make(rng: random.Random, size: int) -> bytes:
        if b"%d" not in item:
            return begin + item * (size // len(item)) + end
        return begin + b"".join(item % number for number in range(min(size // len(item), 10**6))) + end

    return make


def noise(rng: random.Random, size: int) -> bytes:
    return rng.randbytes(size)


def cut(rng: random.Random, size: int) -> bytes:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()
    return body[: rng.randrange(len(body))]


MAKERS: list[Maker] = [
    inside(b'{"messages":[', b"1,", b"1]}"),
    inside(b'{"messages":[', b"[],", b"1]}"),
    inside(b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"x"},', b"1]}]}"),
    inside(b'{"messages":[', b'{"role":"user","content":"x"},', b"1]}"),
    inside(b'{"prompt":"x","images":[', b'"data:,",', b'"x"]}'),
    inside(b'{"prompt":"x","stop":[', b'"s",', b'"x"]}'),
    inside(b'{"prompt":"x"', b',"k%d":1', b"}"),
    inside(b'{"prompt":"x"', b',"prompt":"x"', b"}"),
    inside(b'{"prompt":"x","metadata":{"a":"b"', b',"k%d":"v"', b"}}"),
    inside(b'{"prompt":"x","logit_bias":{"1":1', b',"%d":1', b"}}"),
    inside(b'{"prompt":"x","cache":{"options":{"a":1', b',"k%d":1', b"}}}"),
    inside(b'{"prompt":"x","seed":', b"9", b"}"),
    inside(b'{"prompt":"x","temperature":0.', b"9", b"}"),
    inside(b'{"prompt":"x","temperature":1e', b"9", b"}"),
    inside(b"", b"[", b""),
    inside(b"", b'{"a":', b""),
    inside(b"", b" ", b"{}"),
    inside(b'{"prompt":"x","images":["data:image/png;base64,', b"AAAA", b'"]}'),
    inside(b'{"prompt":"x","images":["data:image/png,', b"%%41", b'"]}'),
    inside(b'{"prompt":"x","images":["', b"http://", b'"]}'),
    lambda rng, size: b'{"prompt":' + text(rng, size) + b"}",
    lambda rng, size: b"{" + text(rng, size) + b":1}",
    lambda rng, size: b'{"prompt":"x","user":' + text(rng, size) + b"}",
    noise,
    cut,
]


def sizes(rng: random.Random) -> list[int]:
    """Most are small, some large, and a few as large as a body may be."""
    small = [int(10 ** rng.uniform(1, 5)) for _ in range(BODIES - 5 * LARGE)]
    medium = [int(10 ** rng.uniform(5, 6.5)) for _ in range(4 * LARGE)]
    return [*small, *medium, *(rng.randrange(LONGEST // 4, LONGEST) for _ in range(LARGE))]


@pytest.mark.slow
def test_h3_5000_bodies_of_up_to_60_mb_hold_up_nobody() -> None:
    rng = random.Random(20)
    statuses: Counter[int] = Counter()
    with front_end() as stand, httpx.Client(base_url=stand.url, timeout=120, trust_env=False) as client:
        client.post("/v1/chat", json={"prompt": "x"}).raise_for_status()
        before = stand.memory()
        with watched(stand) as seconds:
            for number, size in enumerate(sizes(rng)):
                body = MAKERS[number % len(MAKERS)](rng, size)
                response = client.post("/v1/chat", content=body, headers={"content-type": "application/json"})
                statuses[response.status_code] += 1
                assert response.status_code < 500, (number, body[:80], response.text[:200])
        grown = stand.memory("VmHWM") - before
        client.post("/v1/chat", json={"prompt": "x"}).raise_for_status()
    seconds.sort()
    late, held = ([round(1000 * it, 1) for it in those] for those in (seconds[-5:], stand.holds[:5]))
    print(
        f"/livez: {len(seconds)} answers, the slowest in {late} ms; the loop held for {held} ms of its processor; "
    )
    print(f"{grown / MIB:.0f} MiB; {statuses}")
    assert len(seconds) > 500
    assert stand.holds[0] < 0.1
    assert grown < 4 * LONGEST
