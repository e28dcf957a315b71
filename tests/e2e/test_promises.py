"""The promises of the architecture page, each over real HTTP, a real worker and a real LMDB store."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lmdb
import numpy as np
import pytest
import torch

from demo.asking import Refused, ask
from demo.pages import Page, render
from demo.questions import make_example
from engine.messages import ImageInput
from service.settings import MIB
from store.records.entry import ImageKV
from store.records.keys import pixel_digest
from store.types import EntryFilter
from tests.e2e.conftest import Start
from tests.e2e.examples import mixed
from tests.e2e.live import Live, body, page_url, tiers, tokens
from tests.service.serving import eventually

RNG = np.random.default_rng(11)
TWO_PAGES = make_example(RNG, "system", 2)
PLAIN = make_example(RNG, "single_hop", 1)


def test_promise_1_an_entry_depends_on_nothing_but_the_image_the_model_and_its_settings(start: Start) -> None:
    """The same images, first seen in other conversations, in another order, beside others: the same entries."""
    here, there = start(), start()
    swapped = make_example(np.random.default_rng(12), "question_first", 3)
    here.ask(TWO_PAGES)
    there.ask(swapped)
    first, second = (page_url(there.url, page) for page in TWO_PAGES.pages)
    ask(
        there.api,
        {"prompt": "Read all of the last page.", "images": [second, first, second], "max_tokens": 2},
    )
    here.flush()
    there.flush()
    assert len(here.entry_keys()) == 2
    assert here.entry_keys() < there.entry_keys()
    for page in TWO_PAGES.pages:
        ours, theirs = entry(here, page), entry(there, page)
        for name in ("keys", "values", "features", "value_norms"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def entry(live: Live, page: Page) -> ImageKV:
    """What the store holds of a page."""
    pixels = render(page)
    height, width, _ = pixels.shape
    image = ImageInput(pixel_digest(width, height, pixels.tobytes()), width, height, pixels.tobytes())
    (tenant,) = {info.tenant for info in live.started.store.admin.entries(EntryFilter()).entries}

    def must_be_there() -> ImageKV:
        raise AssertionError("the page is not in the store")

    with live.started.store.entries.fetch(
        live.started.worker.runtime.key(tenant, image), must_be_there
    ) as fetched:
        return fetched.entry


def test_promise_2_the_cache_never_changes_an_answer_cold_or_warm_from_any_tier(start: Start) -> None:
    never_the_same_twice(start(), 10)


@pytest.mark.slow
def test_promise_2_the_cache_never_changes_an_answer_for_200_mixed_requests(start: Start) -> None:
    never_the_same_twice(start(), 200)


def never_the_same_twice(live: Live, count: int) -> None:
    """Ask all of it cold, decoded, from memory, from disk and past the store, and compare token by token."""
    requests = mixed(count)
    cold = [live.ask(example, mode="rewrite", chain="off", **way) for example, way in requests]
    assert all(outcome == "miss" for answer in cold for outcome, _ in tiers(answer))
    expected = [tokens(answer) for answer in cold]

    def check(source: str | None, mode: str = "read") -> None:
        answers = [live.ask(example, mode=mode, chain="off", **way) for example, way in requests]
        assert [tokens(answer) for answer in answers] == expected
        outcome = "bypass" if source is None else "hit"
        assert set(itertools.chain.from_iterable(map(tiers, answers))) == {(outcome, source)}

    check("decoded")
    live.flush()
    live.restart(decoded_bytes=0, memory_bytes=0)
    check("lmdb")
    live.restart(memory_bytes=256 * MIB)
    for example, way in requests:
        live.ask(example, chain="off", **way)
    live.flush()
    check("memory")
    check(None, mode="bypass")


@pytest.mark.parametrize("kind", ["system", "list", "dialogue", "question_first"])
def test_promise_3_r_1_is_full_prefill_and_r_0_is_plain_reuse(live: Live, kind: str) -> None:
    example = make_example(np.random.default_rng(3), kind, 2)
    full = live.ask(example, policy="full", chain="off")
    everything = live.ask(example, refresh_ratio=1.0, chain="off")
    assert tokens(everything) == tokens(full)
    assert (
        everything.report["refreshed_tokens"]
        == full.report["refreshed_tokens"]
        == full.report["visual_tokens"]
    )
    nothing, reuse = (
        live.ask(example, refresh_ratio=0.0, chain="off"),
        live.ask(example, policy="reuse", chain="off"),
    )
    assert tokens(nothing) == tokens(reuse)
    assert nothing.report["refreshed_tokens"] == reuse.report["refreshed_tokens"] == 0


def test_promise_3_policy_full_does_not_touch_the_store(start: Start) -> None:
    live = start()
    answer = live.ask(TWO_PAGES, policy="full")
    live.flush()
    assert live.entry_keys() == set()
    assert live.stats()["compiles"] == 0
    assert tiers(answer) == {("bypass", None)}
    live.api.post("/v1/cache/clear", json={}).raise_for_status()
    live.ask(TWO_PAGES, policy="full", chain="off")
    live.flush()
    assert live.entry_keys("chain") == set()


DAMAGE = {"flipped bit": "corrupt", "piece missing": "torn", "manifest cut": "torn", "pieces only": "absent"}


@pytest.mark.parametrize("damage", DAMAGE)
def test_promise_4_a_damaged_record_is_a_miss_is_removed_and_counted(start: Start, damage: str) -> None:
    live = start()
    before = live.ask(PLAIN, refresh_ratio=0.3, chain="off")
    live.flush()
    live.close()
    harm(live.folder, damage)
    live.restart()
    again = live.ask(PLAIN, refresh_ratio=0.3, chain="off")
    assert tokens(again) == tokens(before)
    (image,) = again.report["images"]
    assert image["outcome"] in ("miss", "corrupt")
    assert image["tier"] is None
    if damage != "pieces only":
        (disk,) = (tier for tier in live.stats()["tiers"] if tier["name"] == "lmdb")
        assert sum(disk["rejected"].values()) == 1
    live.flush()
    live.restart()
    assert tiers(live.ask(PLAIN, refresh_ratio=0.3, chain="off")) == {("hit", "lmdb")}


def harm(folder: Path, damage: str) -> None:
    """Change the one record of a store that nobody has open."""
    with lmdb.open(str(folder), max_dbs=8) as environment:
        records, pieces = (environment.open_db(name) for name in (b"records", b"pieces"))
        with environment.begin(write=True) as transaction:
            (digest, manifest), *_ = [(bytes(k), bytes(v)) for k, v in transaction.cursor(db=records)]
            (number, piece), *_ = [(bytes(k), bytes(v)) for k, v in transaction.cursor(db=pieces)]
            if damage == "flipped bit":
                middle = len(piece) // 2
                flipped = piece[:middle] + bytes([piece[middle] ^ 1]) + piece[middle + 1 :]
                transaction.put(number, flipped, db=pieces)
            elif damage == "piece missing":
                transaction.delete(number, db=pieces)
            elif damage == "manifest cut":
                transaction.put(digest, manifest[:-7], db=records)
            else:
                transaction.delete(digest, db=records)


def test_promise_4_a_record_of_another_model_is_never_served(
    start: Start, model_path: Path, tmp_path: Path
) -> None:
    """The same checkpoint with one weight changed, over the same store."""
    live = start()
    live.ask(PLAIN)
    live.flush()
    keys = live.entry_keys()
    live.close()
    other = start(folder=live.folder, model=with_another_weight(model_path, tmp_path / "other"))
    assert tiers(other.ask(PLAIN)) == {("miss", None)}
    other.flush()
    assert len(other.entry_keys() - keys) == 1


def with_another_weight(model: Path, folder: Path) -> Path:
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(weights) if name.endswith("q_proj.bias"))
    weights[name] = weights[name] + 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_promise_5_the_store_is_an_accelerator_never_a_dependency(start: Start, tmp_path: Path) -> None:
    """No disk that can be written, no Redis that answers, a disk too small for any entry: the same answer each time."""
    expected = tokens(start().ask(TWO_PAGES))
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the store's folder should be")
    troubles: dict[str, dict[str, Any]] = {
        "no folder": {"path": blocked},
        "no Redis": {"redis_url": f"redis://127.0.0.1:{closed_port()}/0"},
        "no room": {"disk_bytes": 4096, "memory_bytes": 0, "decoded_bytes": 0},
    }
    live = start()
    for name, store in troubles.items():
        live.restart(**store)
        assert tokens(live.ask(TWO_PAGES)) == expected, name
        assert tokens(live.ask(TWO_PAGES)) == expected, name


def test_promise_5_a_broken_store_file_is_set_aside_and_the_answer_is_computed(start: Start) -> None:
    live = start()
    before = live.ask(PLAIN)
    live.flush()
    live.close()
    (live.folder / "data.mdb").write_bytes(b"\x00" * 8192)
    live.restart()
    assert tokens(live.ask(PLAIN)) == tokens(before)
    assert live.stats()["degraded"]
    assert live.ready()["status"] == "ready" and live.ready()["degraded"] == live.stats()["degraded"]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_promise_6_every_accepted_request_ends_in_one_terminal_event_and_its_memory_is_back(
    live: Live,
) -> None:
    """Whole answers, answers cut short by length or by a stop string, and clients that leave in the middle."""
    requests = [body(example, live.url, way) for example, way in mixed(6, seed=5)]
    variants: tuple[dict[str, Any], ...] = ({}, {"max_tokens": 1}, {"stop": ["e", "i"]})
    for asked, variant in itertools.product(requests, variants):
        events = stream_of(live.api, {**asked, **variant})
        assert events[-1] == "data: [DONE]"
        assert sum('"finish_reason":"' in event for event in events) == 1
        leave_early(live.api, {**asked, "max_tokens": 500})
    with pytest.raises(Refused):
        ask(live.api, {**requests[0], "max_tokens": 10_000_000})
    everything_is_back(live)


def stream_of(api: httpx.Client, asked: dict[str, Any]) -> list[str]:
    with api.stream("POST", "/v1/chat", json={**asked, "stream": True}) as response:
        assert response.status_code == 200
        return [line for line in response.iter_lines() if line and not line.startswith(":")]


def leave_early(api: httpx.Client, asked: dict[str, Any]) -> None:
    with api.stream("POST", "/v1/chat", json={**asked, "stream": True}) as response:
        next(response.iter_lines())


def everything_is_back(live: Live) -> None:
    worker = live.started.worker
    eventually(lambda: worker.status().running == worker.status().waiting == 0, "nobody runs or waits")
    eventually(lambda: live.stats()["leases"] == 0, "no entry is in use")
    assert worker.runtime.pool.taken == 0


FORBIDDEN = (
    "/etc/passwd",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "../models/page-reader/config.json",
    "models/page-reader/config.json",
    "http://{canary}/picture.png",
    "http://localhost:{port}/picture.png",
    "http://0x7f000001:{port}/picture.png",
    "http://2130706433:{port}/picture.png",
    "http://[::ffff:127.0.0.1]:{port}/picture.png",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00::1]/picture.png",
    "http://10.0.0.1/picture.png",
    "gopher://{canary}/picture.png",
)


@pytest.fixture
def canary() -> Iterator[tuple[socket.socket, int]]:
    """A private address that nobody may call on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        yield listening, listening.getsockname()[1]


def test_promise_7_no_string_is_opened_as_a_path_and_no_private_address_is_fetched(
    start: Start, canary: tuple[socket.socket, int]
) -> None:
    listening, port = canary
    live = start(allowed_private_hosts=())
    opened: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str | bytes):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    try:
        for url in FORBIDDEN:
            target = url.format(canary=f"127.0.0.1:{port}", port=port)
            refused(live, {"prompt": target, "images": [target], "max_tokens": 1})
    finally:
        watching = False
    assert not [path for path in opened if "passwd" in path or "page-reader" in path]
    with pytest.raises(BlockingIOError):
        listening.accept()


def refused(live: Live, asked: dict[str, Any]) -> None:
    answer = live.api.post("/v1/chat", json=asked)
    assert answer.status_code == 400, asked
    assert answer.json()["error"]["code"] in (
        "image_url_blocked",
        "invalid_image_url",
        "image_fetch_failed",
    ), asked


def test_promise_7_the_operator_s_own_hosts_are_fetched(start: Start) -> None:
    live = start()
    answer = live.ask(PLAIN)
    assert answer.report["images"][0]["tokens"] > 0
