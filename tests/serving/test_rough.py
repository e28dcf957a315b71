"""What a service has to live through: clients that leave by the hundred, a worker that is killed, an operator who
clears the store while everybody asks."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from benchmarks.processes import resident
from demo.asking import Answer, ask
from tests.e2e.live import PATIENT
from tests.serving.crowd import (
    Service,
    asking,
    endless,
    ends_with_one_error,
    metric,
    nothing_is_left,
    questions,
    running,
    streaming,
    together,
    until,
)

pytestmark = pytest.mark.slow

LEAVING = 500
# Departures after which every buffer size has been seen and the allocators have what they keep.
SETTLED = 100
# Resident memory may grow by as much between then and the end, in either process. What requests hold is more by far:
# 400 times the pixels of two pictures are 460 MiB in either process, and a KV for each another 300 MiB in the worker,
# so one request in ten that is not let go would show.
GROWTH_BYTES = 24 << 20
EDGE = 448


def test_f3_500_clients_that_leave_leave_memory_where_it_was(service: Service, api: httpx.Client) -> None:
    asked = [endless(body) for body in questions(service.url, 16, seed=5, edge=EDGE)]
    sizes: dict[int, list[int]] = {service.pid: [], service.worker: []}
    for number, body in zip(range(LEAVING), itertools.cycle(asked), strict=False):
        leave(api, body, number)
        for pid, seen in sizes.items():
            seen.append(resident(pid))
    for seen in sizes.values():
        # Medians: a single reading may fall into a picture being decoded.
        before, after = (float(np.median(part)) for part in (seen[SETTLED : SETTLED + 50], seen[-50:]))
        assert after - before < GROWTH_BYTES
    until(lambda: metric(api, 'conduit_requests_total{outcome="client_gone"}') >= LEAVING, "all are counted")
    nothing_is_left(api)


def leave(api: httpx.Client, asked: dict[str, Any], number: int) -> None:
    """In one of four ways: while the answer streams, while it is generated unseen, at once, streamed or not."""
    match number % 4:
        case 0:
            with streaming(api, asked):
                pass
        case 1:
            with asking(api, asked):
                until(lambda: running(api) > 0, "it runs")
        case way:
            with asking(api, {**asked, "stream": way == 2}):
                pass


def test_f14_a_worker_killed_under_load_ends_its_streams_and_is_replaced(
    service: Service, api: httpx.Client
) -> None:
    asked = questions(service.url, 6, seed=6)
    before = together(service, asked)
    until(lambda: api.get("/v1/cache/stats").json()["write_queue"] == 0, "everything is on disk")
    doomed = service.worker
    reading = threading.Barrier(len(asked) + 1)
    with ThreadPoolExecutor(len(asked)) as pool:
        cut = [pool.submit(rest_of_stream, service, endless(body), reading) for body in asked]
        reading.wait()
        os.kill(doomed, signal.SIGKILL)
        until(lambda: api.get("/readyz").status_code == 503, "it is not ready")
        assert any("worker" in reason for reason in api.get("/readyz").json()["reasons"])
        assert api.get("/livez").status_code == 200
        refused = api.post("/v1/chat", json=asked[0])
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")
        for stream in cut:
            ends_with_one_error(stream.result(), "engine_stopped")
    until(lambda: api.get("/readyz").status_code == 200, "a new worker is ready")
    assert service.worker != doomed
    after = [ask(api, body) for body in asked]
    assert [answer.text for answer in after] == [answer.text for answer in before]
    assert {image["outcome"] for answer in after for image in answer.report["images"]} == {"hit"}
    nothing_is_left(api)


def rest_of_stream(service: Service, asked: dict[str, Any], reading: threading.Barrier) -> list[str]:
    """What comes after the first text; everybody has seen some when `reading` is passed."""
    with (
        httpx.Client(base_url=service.url, timeout=PATIENT, trust_env=False) as client,
        streaming(client, asked) as lines,
    ):
        reading.wait()
        return list(lines)


ROUNDS = 15


def test_d11_an_operator_who_clears_the_store_under_load_changes_no_answer(
    service: Service, api: httpx.Client
) -> None:
    asked = questions(service.url, 6, seed=7)
    expected = [ask(api, body).text for body in asked]
    seen: list[Answer] = []
    with operator(service) as (statuses, removed):
        for _ in range(ROUNDS):
            answers = together(service, asked)
            assert [answer.text for answer in answers] == expected
            seen += answers
    # 404: an entry that was listed is gone when it is to be deleted.
    assert {200, 204} <= set(statuses) <= {200, 204, 404}
    assert removed
    outcomes = {image["outcome"] for answer in seen for image in answer.report["images"]}
    assert outcomes == {"hit", "miss"}
    nothing_is_left(api)


@contextmanager
def operator(service: Service) -> Iterator[tuple[list[int], list[str]]]:
    """Clears, evicts and deletes without a pause until left; what the service answered, and the keys it removed."""
    statuses: list[int] = []
    removed: list[str] = []
    stopped = threading.Event()

    def work() -> None:
        with httpx.Client(base_url=f"{service.url}/v1/cache", timeout=PATIENT, trust_env=False) as admin:
            while not stopped.is_set():
                listed = admin.get("/entries").json()["entries"]
                deleted = [admin.delete(f"/entries/{entry['key']}") for entry in listed[:2]]
                given = [
                    admin.post("/evict", json={"bytes": 1, "dry_run": False}),
                    admin.post("/clear", json={}),
                ]
                statuses.extend(answer.status_code for answer in (*deleted, *given))
                for answer in given:
                    removed.extend(answer.json()["keys"])

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            yield statuses, removed
        finally:
            stopped.set()
        working.result()
