"""Mixed load on one service for as long as is asked for, with everything that can go wrong going wrong meanwhile.

    python -m tests.serving.endurance --minutes 60 --log docs/endurance.md

Users ask, leave and stall, bad clients send rubbish, an operator works on the store; the worker is killed or stopped,
the Redis server dies and comes back, bits of the LMDB file flip. What must hold: every answer is the one that was given
in calm, or one error that says so; every request ends; the front end stays awake, its memory and descriptors flat.
Bounded in time by `--minutes`, in rate by its few users, to this machine by the loopback address.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.processes import resident
from benchmarks.result import commit, machine
from demo.asking import Refused, ask
from tests.serving.crowd import Service, questions, streaming
from tests.store.redis_server import Server

USERS = 3
QUESTIONS = 24
TOKENS = 16
PATIENT = httpx.Timeout(180.0)
# Refusals that a fault entitles the service to; everything else that is not the right answer is a failure.
EXCUSED = frozenset({"engine_stopped", "queue_full", "rate_limited"})
FAULT_SECONDS = (8.0, 25.0)
MIB = 1 << 20
GROWTH_BYTES = 64 * MIB
GROWTH_DESCRIPTORS = 16
# A loop that somebody holds, without what it waited for a processor; how fast it is otherwise is a figure of the log.
FROZEN_SECONDS = 5.0


@dataclass(slots=True)
class Seen:
    """What happened, counted by name; `failures` are what must not happen."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    livez: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1

    def failed(self, what: str) -> None:
        with self.lock:
            self.failures.append(what)
            self.counts["FAILED"] += 1


@dataclass(slots=True)
class Stand:
    """The service under load, its shared tier, the questions with their answers in calm, and how long it goes on."""

    service: Service
    redis: Server
    folder: Path
    asked: Sequence[dict[str, Any]]
    expected: Sequence[str]
    end: float
    seen: Seen

    def until_the_end(self, act: Callable[[random.Random, httpx.Client], None], seed: int) -> None:
        """Repeat `act`; what it raises is a failure, and ends only that turn."""
        rng = random.Random(seed)
        with httpx.Client(base_url=self.service.url, timeout=PATIENT, trust_env=False) as client:
            while time.monotonic() < self.end:
                try:
                    act(rng, client)
                except Exception as error:  # every kind is a finding
                    self.seen.failed(f"{act.__name__}: {type(error).__name__}: {str(error)[:200]}")
                    time.sleep(0.2)

    def user(self, rng: random.Random, client: httpx.Client) -> None:
        """Asks, and compares the answer with the one in calm."""
        number = rng.randrange(len(self.asked))
        try:
            answer = ask(client, self.asked[number])
        except Refused as refusal:
            code = str(refusal).rsplit("(", 1)[-1].rstrip(")")
            if code not in EXCUSED:
                raise
            self.seen.count(f"refused: {code}")
            time.sleep(0.5)
            return
        if answer.text != self.expected[number]:
            self.seen.failed(f"question {number}: {answer.text!r}, in calm {self.expected[number]!r}")
        outcomes = {image["outcome"] for image in answer.report["images"]}
        self.seen.count("right: " + "+".join(sorted(outcomes)))

    def leaver(self, rng: random.Random, client: httpx.Client) -> None:
        """Leaves in mid-stream, or reads nothing for a while and leaves then."""
        asked = rng.choice(self.asked)
        try:
            with streaming(client, asked) as lines:
                next(lines, None)
                time.sleep(rng.choice((0.0, 0.0, 2.0)))
            self.seen.count("left in mid-stream")
        except AssertionError:  # refused, or the worker died before the first text
            self.seen.count("left before the answer began")
            time.sleep(0.5)

    def vandal(self, rng: random.Random, client: httpx.Client) -> None:
        """Sends what no client should; each is a 4xx, or a connection that the service closes."""
        kind = rng.choice(("deep", "list", "picture", "half", "type", "cut"))
        if kind in ("half", "cut"):
            half_request(self.service.url, rng.random() * 2, body=kind == "cut")
        else:
            body, headers = rubbish(rng, kind)
            answer = client.post("/v1/chat", content=body, headers=headers)
            if not 400 <= answer.status_code < 500 and answer.status_code != 503:
                raise AssertionError(f"{kind}: status {answer.status_code}")
        self.seen.count(f"rubbish: {kind}")
        time.sleep(0.3)

    def operator(self, rng: random.Random, client: httpx.Client) -> None:
        """Looks at the store and works on it."""
        way = rng.choice(("stats", "entries", "evict", "clear", "verify", "pin", "metrics", "ready"))
        status = operate(way, client)
        # An entry that was listed may be gone when it is to be pinned; without a worker there is no store.
        if status not in (200, 204, 503) and (way, status) != ("pin", 404):
            raise AssertionError(f"{way}: status {status}")
        self.seen.count(f"operator: {way} {status}")
        time.sleep(0.5)

    def fault(self, rng: random.Random, client: httpx.Client) -> None:
        """One thing breaks, then there is quiet for a while."""
        kind = rng.choice(("kill", "kill", "stop", "redis", "flip"))
        if kind in ("kill", "stop"):
            hit_worker(self.service, kind == "kill")
        elif kind == "redis":
            self.redis.pause()
            time.sleep(3)
            self.redis.resume()
        else:
            flip(self.folder, rng)
        self.seen.count(f"fault: {kind}")
        time.sleep(min(rng.uniform(*FAULT_SECONDS), max(0.0, self.end - time.monotonic())))

    def watcher(self, rng: random.Random, client: httpx.Client) -> None:
        began, delayed = time.monotonic(), run_delay(self.service.pid)
        client.get("/livez").raise_for_status()
        self.seen.livez.append(time.monotonic() - began)
        self.seen.held.append(self.seen.livez[-1] - (run_delay(self.service.pid) - delayed))
        self.seen.memory.append(resident(self.service.pid))
        self.seen.descriptors.append(len(os.listdir(f"/proc/{self.service.pid}/fd")))
        time.sleep(0.5)

    def ends_well(self) -> None:
        """After the storm: everybody is answered as in calm, and nothing grew."""
        with httpx.Client(base_url=self.service.url, timeout=PATIENT, trust_env=False) as client:
            patience = time.monotonic() + 120
            while client.get("/readyz").status_code != 200:
                if time.monotonic() > patience:
                    return self.seen.failed("not ready two minutes after the last fault")
                time.sleep(0.5)
            for number, body in enumerate(self.asked):
                if (text := ask(client, body).text) != self.expected[number]:
                    self.seen.failed(f"after the storm, question {number}: {text!r}")
        for name, values, allowed in (
            ("memory", self.seen.memory, GROWTH_BYTES),
            ("descriptors", self.seen.descriptors, GROWTH_DESCRIPTORS),
        ):
            early, late = tenths(values)
            if late - early > allowed:
                self.seen.failed(f"the front end's {name} grew from {early:,.0f} to {late:,.0f}")
        if max(self.seen.held) > FROZEN_SECONDS:
            self.seen.failed(f"/livez took {max(self.seen.held):.2f} s, not counting waits for a processor")


def run_delay(pid: int) -> float:
    """Seconds that the main thread of `pid` was ready to run and waited for a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def tenths(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the second and of the last tenth."""
    tenth = max(1, len(values) // 10)
    return float(np.median(values[tenth : 2 * tenth])), float(np.median(values[-tenth:]))


def half_request(url: str, seconds: float, body: bool) -> None:
    host, port = url.removeprefix("http://").split(":")
    head = b"POST /v1/chat HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if body:
        head += b'content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"messages": ['
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head)
        time.sleep(seconds)


def rubbish(rng: random.Random, kind: str) -> tuple[bytes, dict[str, str]]:
    """A body that must be refused, and its headers."""
    media = {"content-type": "application/json"}
    if kind == "deep":
        return b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", media
    if kind == "list":
        return b'{"messages":[' + b",".join([b"1"] * 200_000) + b"]}", media
    if kind == "type":
        return b"{}", {"content-type": "text/plain"}
    noise = "iVBORw0KGgo" + "".join(rng.choices("ABCDEFabcdef0123", k=4000))
    body = {"prompt": "What is this?", "images": [f"data:image/png;base64,{noise}="]}
    return json.dumps(body).encode(), media


def operate(way: str, client: httpx.Client) -> int:
    """One admin call; its status."""
    if way == "evict":
        return client.post("/v1/cache/evict", json={"bytes": 1}).status_code
    if way == "clear":
        return client.post("/v1/cache/clear", json={}).status_code
    if way == "verify":
        return client.post("/v1/cache/verify").status_code
    if way == "pin":
        listed = client.get("/v1/cache/entries", params={"limit": 1})
        if listed.status_code != 200 or not listed.json()["entries"]:
            return listed.status_code
        key = listed.json()["entries"][0]["key"]
        return client.post(f"/v1/cache/pins/{key}", json={"ttl": 30}).status_code
    path = {
        "stats": "/v1/cache/stats",
        "entries": "/v1/cache/entries",
        "metrics": "/metrics",
        "ready": "/readyz",
    }
    return client.get(path[way]).status_code


def hit_worker(service: Service, kill: bool) -> None:
    """Kill the worker, or stop it for three seconds. Between two workers there is none."""
    try:
        worker = service.worker
        os.kill(worker, signal.SIGKILL if kill else signal.SIGSTOP)
        if not kill:
            time.sleep(3)
            os.kill(worker, signal.SIGCONT)
    except (ValueError, OSError):
        pass


def flip(folder: Path, rng: random.Random) -> None:
    """One bit of the LMDB file, wherever it is."""
    for file in (folder / "store").rglob("data.mdb"):
        with file.open("r+b") as data:
            at = rng.randrange(max(1, file.stat().st_size))
            data.seek(at)
            byte = data.read(1)
            if byte:
                data.seek(at)
                data.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))


def run(minutes: float, seed: int = 0, users: int = USERS) -> Seen:
    """Load a fresh service for `minutes`; what was seen, failures included."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as name, Server("maxmemory 64mb") as redis:
        folder = Path(name)
        # So little in memory that the tiers below it are read all the time.
        small = {f"{place}_bytes": str(MIB) for place in ("memory", "decoded")}
        limits = {**small, "disk_bytes": str(64 * MIB), "redis_bytes": str(32 * MIB), "threads": "1"}
        with Service(folder, redis_url=redis.url, stall_after="10", chain_bytes="0", **limits) as service:
            asked = questions(service.url, QUESTIONS, seed=11, max_tokens=TOKENS)
            with httpx.Client(base_url=service.url, timeout=PATIENT, trust_env=False) as client:
                expected = [ask(client, body).text for body in asked]
            stand = Stand(service, redis, folder, asked, expected, time.monotonic() + 60 * minutes, seen)
            others = (stand.leaver, stand.vandal, stand.operator, stand.fault, stand.watcher)
            with ThreadPoolExecutor(users + len(others)) as pool:
                for number, act in enumerate([stand.user] * users + list(others)):
                    pool.submit(stand.until_the_end, act, seed + number)
            stand.ends_well()
    return seen


def report(seen: Seen, minutes: float) -> str:
    """The log as a page."""
    livez = np.percentile(seen.livez, (50, 99, 100)) * 1000
    memory, descriptors = tenths(seen.memory), tenths(seen.descriptors)
    lines = [
        "# Endurance",
        "",
        f"{minutes:g} minutes of mixed load with faults: `python -m tests.serving.endurance --minutes {minutes:g}`.",
        f"{machine()['cpu']}, {machine()['cores']} cores, commit {commit()[:8]}.",
        "",
        "| what | how often |",
        "|---|---:|",
        *(f"| {name} | {count:,} |" for name, count in sorted(seen.counts.items())),
        "",
        f"`/livez` p50 {livez[0]:.1f} ms, p99 {livez[1]:.1f} ms, longest {livez[2]:.1f} ms; "
        f"longest without the service's waits for a processor {1000 * max(seen.held):.1f} ms.",
        f"Front end, second tenth to last: {memory[0] / MIB:.0f} to {memory[1] / MIB:.0f} MiB resident, "
        f"{descriptors[0]:.0f} to {descriptors[1]:.0f} descriptors.",
        "",
        "Failures: " + ("none." if not seen.failures else ""),
        *(f"- {failure}" for failure in seen.failures[:50]),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--log", type=Path)
    arguments = parser.parse_args()
    seen = run(arguments.minutes, arguments.seed, arguments.users)
    page = report(seen, arguments.minutes)
    print(page)
    if arguments.log is not None:
        arguments.log.write_text(page)
    return 1 if seen.failures else 0


if __name__ == "__main__":
    sys.exit(main())
