"""Many requests through a real service in a process of its own: no errors, and memory that stays where it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from demo.asking import Answer, ask
from demo.pages import draw_pages
from demo.questions import ask_value
from demo.service_process import ServiceProcess
from tests.e2e.live import PATIENT, page_url

SEQUENTIAL, CONCURRENT = 500, 50
# Requests after which the store's budgets are full and every buffer size has been seen.
SETTLED = 150
# Of resident memory between then and the end, as a share and in bytes on top. Without heap settings the C library lets
# a process like this grow by several hundred MiB.
GROWTH_SHARE, GROWTH_BYTES = 0.05, 24 << 20
EDGES = (96, 112, 128, 160, 224)


@pytest.fixture
def service(model_path: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    """With budgets that a hundred images fill, so that evictions are part of what is seen."""
    budgets = {
        "memory_bytes": "8MiB",
        "chain_bytes": "8MiB",
        "decoded_bytes": "8MiB",
        "disk_bytes": "32MiB",
        "url_cache_bytes": "1MiB",
        "upload_cache_bytes": "1MiB",
    }
    with ServiceProcess(tmp_path, model=str(model_path), threads="1", **budgets) as started:
        yield started


def requests(url: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Questions about one to four pages of several sizes; half of the pages come again."""
    rng = np.random.default_rng(seed)
    known = [page for _ in range(25) for page in draw_pages(rng, 8)]
    made = []
    for number in range(count):
        pages = draw_pages(rng, int(rng.integers(1, 5)))
        if number % 2:
            pages = tuple(known[i] for i in rng.integers(0, len(known), len(pages)).tolist())
        question = ask_value(rng, pages, {}, 0, pages[0].cells[0].key, by_order=True)
        edges = rng.choice(EDGES, len(pages)).tolist()
        images = [page_url(url, page, edge) for page, edge in zip(pages, edges, strict=True)]
        made.append({"prompt": question.text, "images": images, "max_tokens": int(rng.integers(1, 12))})
    return made


def resident(pid: int) -> int:
    """Bytes of resident memory of a process and all below it. Pages of mapped files are left out: the disk tier's
    file is mapped, grows up to its budget, and its pages are the system's to take back."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own * 1024 + sum(resident(int(child)) for child in children)


@pytest.mark.slow
def test_500_sequential_requests_leave_memory_where_it_was(service: ServiceProcess) -> None:
    with client(service) as api:
        sizes = []
        for number, asked in enumerate(requests(service.url, SEQUENTIAL, seed=1)):
            check(ask(api, asked))
            if number >= SETTLED:
                sizes.append(resident(service.pid))
    # Medians of the first and the last fifty: a single reading may fall into an image being decoded.
    before, after = (float(np.median(part)) for part in (sizes[:50], sizes[-50:]))
    assert after < before * (1 + GROWTH_SHARE) + GROWTH_BYTES
    nothing_is_left(service)


@pytest.mark.slow
def test_50_concurrent_requests_are_all_answered(service: ServiceProcess) -> None:
    asked = requests(service.url, CONCURRENT, seed=2)
    together = threading.Barrier(CONCURRENT)

    def one(body: dict[str, Any]) -> Answer:
        with client(service) as api:
            together.wait()
            return ask(api, body)

    with ThreadPoolExecutor(CONCURRENT) as pool:
        answers = list(pool.map(one, asked))
    for answer in answers:
        check(answer)
    with client(service) as api:
        alone = [ask(api, body) for body in asked]
    assert [answer.text for answer in answers] == [answer.text for answer in alone]
    nothing_is_left(service)


def client(service: ServiceProcess) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=PATIENT, trust_env=False)


def check(answer: Answer) -> None:
    report, usage = answer.report, answer.usage
    assert report["fallback"] is None
    kinds = ("reused_tokens", "compiled_tokens", "refreshed_tokens", "chained_tokens")
    assert sum(report[kind] for kind in kinds) == report["visual_tokens"] > 0
    assert usage["completion_tokens"] >= 1


def nothing_is_left(service: ServiceProcess) -> None:
    with client(service) as api:
        assert api.get("/readyz").json() == {"status": "ready", "reasons": [], "degraded": []}
        assert api.get("/v1/cache/stats").json()["leases"] == 0
