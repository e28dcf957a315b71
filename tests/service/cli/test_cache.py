"""The operator's commands against the real service on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from service.cli.options import size
from service.cli.report import age, binary
from tests.service.cli.running import conduit, refused, run
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import plain

KEYS = [f"{i:064x}" for i in range(3)]
NAMED = ["ab12" + "0" * 60, "ab13" + "0" * 60, "cd00" + "0" * 60]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_cache_commands(api: httpx.Client, engine: FakeEngine) -> None:
    for key in KEYS:
        engine.cache.put(key)
    lines = rows(run(api, "cache", "stats"))
    assert lines[0][:2] == ["tier", "entries"]
    assert [line[0] for line in lines[1:4]] == ["decoded", "memory", "disk"]
    assert [row[0] for row in rows(run(api, "cache", "ls", "--tenant", "default"))] == ["key", *KEYS]
    assert run(api, "cache", "rm", KEYS[0]) == f"removed {KEYS[0]}\n"
    assert run(api, "cache", "evict", "--all", "--dry-run").startswith("would remove 2 entries")
    assert run(api, "cache", "evict", "--older-than", "0", "--bytes", "1M").startswith("removed 2 entries")
    assert engine.cache.held == {}


def test_clear_verify_and_warm(api: httpx.Client, engine: FakeEngine, tmp_path: Path) -> None:
    engine.cache.put(KEYS[0], pinned="hard")
    engine.cache.put(KEYS[1])
    assert run(api, "cache", "verify").splitlines() == [
        "memory: 2 of 2 records checked",
        "2 records checked, removed: 1 corrupt",
    ]
    assert run(api, "cache", "clear").splitlines() == [
        "removed 1 entries, 4.0 KiB",
        "left 0 in use, 1 pinned",
    ]
    cleared = run(api, "cache", "clear", "--include-pinned", "--tenant", "default")
    assert cleared.startswith("removed 1 entries")
    picture = tmp_path / "page.png"
    picture.write_bytes(plain())
    assert run(api, "cache", "warm", str(picture), "--tenant", "alice").startswith(f"{picture}: miss ")
    assert engine.requests[0].tenant == "alice"
    assert refused(api, "cache", "warm", str(picture), "data:,x") == "error: 1 of 2 images were not stored\n"


def test_pins(api: httpx.Client, engine: FakeEngine) -> None:
    for key in KEYS:
        engine.cache.put(key)
    assert run(api, "cache", "pin", KEYS[0], KEYS[1]) == f"pinned {KEYS[0]}\npinned {KEYS[1]}\n"
    assert run(api, "cache", "pin", KEYS[1], "--ttl", "60") == f"pinned {KEYS[1]}\n"
    assert [row[-1] for row in rows(run(api, "cache", "ls"))] == ["pinned", "hard", "soft", "-"]
    assert run(api, "cache", "unpin", KEYS[0]) == f"unpinned {KEYS[0]}\n"
    assert [engine.cache.held[key].pinned for key in KEYS] == ["", "soft", ""]
    assert "not pinned" in refused(api, "cache", "unpin", KEYS[0])


def test_quotas(api: httpx.Client, engine: FakeEngine) -> None:
    assert rows(run(api, "cache", "quota")) == [["tenant", "quota", "held"]]
    assert run(api, "cache", "quota", "alice", "2GiB") == "alice may hold 2.0 GiB in each tier\n"
    run(api, "cache", "quota", "bob", "1M")
    assert engine.cache.limits == {"alice": 2**31, "bob": 2**20}
    for name in ("bob?", "bob#1"):  # whatever is typed stays one name
        assert "invalid_request" in refused(api, "cache", "quota", name, "1M")
    assert rows(run(api, "cache", "quota", "alice")) == [
        ["tenant", "quota", "held"],
        ["alice", "2.0", "GiB", "0", "B"],
    ]
    assert len(rows(run(api, "cache", "quota"))) == 3
    assert run(api, "cache", "quota", "alice", "none") == "alice has no quota\n"
    assert "entry_not_found" in refused(api, "cache", "quota", "alice")


def test_a_short_key_is_enough_where_it_is_one_entrys(api: httpx.Client, engine: FakeEngine) -> None:
    for key in NAMED:
        engine.cache.put(key)
    assert run(api, "cache", "pin", "ab12", "cd00") == f"pinned {NAMED[0]}\npinned {NAMED[2]}\n"
    assert run(api, "cache", "unpin", NAMED[0][:16]) == f"unpinned {NAMED[0]}\n"
    assert run(api, "cache", "rm", "ab12") == f"removed {NAMED[0]}\n"
    assert list(engine.cache.held) == NAMED[1:]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("ab1", "'ab1' is no key"),
        ("AB12", "'AB12' is no key"),
        ("../stats", "is no key"),
        ("ключ", "is no key"),
        ("ffff", "No entry's key begins with ffff"),
        ("ab1" + "2" * 62, "is no key"),
        ("aaaa", f"2 keys begin with aaaa: {'aaaa' + '0' * 60}, {'aaaa1' + '0' * 59} ..."),
    ],
)
def test_a_key_that_names_no_entry_removes_nothing(
    api: httpx.Client, engine: FakeEngine, key: str, says: str
) -> None:
    for held in (*NAMED, "aaaa" + "0" * 60, "aaaa1" + "0" * 59):
        engine.cache.put(held)
    assert says in refused(api, "cache", "rm", key)
    assert says in refused(api, "cache", "rm", NAMED[0], key)  # before anything is removed
    assert len(engine.cache.held) == 5


def test_listing_goes_on_to_the_last_page(
    api: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.keys._PAGE", 2)
    keys = [f"{i:064x}" for i in range(5)]
    for key in keys:
        engine.cache.put(key)
    head, *found = rows(run(api, "cache", "ls"))
    assert head[0] == "key" and [row[0] for row in found] == keys


def test_listing_an_empty_store_is_a_header(api: httpx.Client) -> None:
    (head,) = rows(run(api, "cache", "ls"))
    assert head[0] == "key"


def test_every_cache_command_speaks_json(api: httpx.Client, engine: FakeEngine, tmp_path: Path) -> None:
    for key in NAMED:
        engine.cache.put(key)
    picture = tmp_path / "page.png"
    picture.write_bytes(plain())
    said = {}
    for arguments in (
        ("stats",),
        ("ls",),
        ("pin", "ab12"),
        ("unpin", "ab12"),
        ("quota", "alice", "1M"),
        ("quota",),
        ("quota", "alice", "none"),
        ("verify",),
        ("rm", "ab12"),
        ("evict", "--all"),
        ("clear",),
        ("warm", str(picture), "--tenant", "alice"),
    ):
        printed = run(api, "cache", *arguments, "--json")
        said[arguments[0]] = [json.loads(line) for line in printed.splitlines()]
    assert [entry["key"] for entry in said["ls"][0]["entries"]] == NAMED
    assert said["stats"][0]["compiles"] == 2 and said["verify"][-1]["done"]
    assert said["rm"] == [{"removed": NAMED[0]}] and said["evict"][0]["keys"] == NAMED[1:]
    assert said["pin"] == [{"pinned": NAMED[0], "hard": True}]
    assert said["warm"][0]["name"] == str(picture)
    failed = json.loads(refused(api, "cache", "rm", "ffff", "--json"))
    assert failed["error"]["code"] == "entry_not_found"


@pytest.mark.parametrize(
    ("text", "expected"), [("500", 500), ("64K", 65536), ("1.5GiB", 3 * 2**29), ("2mb", 2**21), ("10B", 10)]
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["lots", "nan", "inf", "", "1Q", "1e400"])
def test_what_is_no_size_is_a_usage_error(text: str) -> None:
    for arguments in (("cache", "evict", "--bytes", text), ("cache", "quota", "alice", text)):
        done = conduit(*arguments, "--url", "http://127.0.0.1:9")
        assert done.exit_code in (1, 2) and "Traceback" not in done.output
        assert text == "" or "not a size" in done.stderr


def test_numbers_are_shown_with_units() -> None:
    assert [binary(n) for n in (0, 1023, 1024, 3 * 2**29, 2**51)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
        "2048.0 TiB",
    ]
    assert [age(n) for n in (-1, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
