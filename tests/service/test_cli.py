"""The terminal client against the real service on the fake engine."""

from __future__ import annotations

import io
import os
from pathlib import Path

import httpx
import pytest

from engine.messages import Failed, TextDelta
from service.cli.__main__ import main, parser
from service.cli.bench import Seen, bench_lines
from service.cli.cache import size
from service.cli.report import age, binary
from service.settings import Settings, SettingsError
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, accepted, fails
from tests.service.images.pictures import data_url, plain

KEYS = [f"{i:064x}" for i in range(3)]


def run(api: httpx.Client, *arguments: str) -> str:
    """The output of a command that works."""
    out = io.StringIO()
    assert main(["--url", str(api.base_url), *arguments], out) == 0
    return out.getvalue()


def test_chat_prints_answer_and_reuse(api: httpx.Client, engine: FakeEngine, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    picture.write_bytes(plain())
    for outcome, reused, compiled in (("miss", 0, 64), ("hit", 64, 0)):
        out = run(api, "chat", "-i", str(picture), "-i", data_url(plain((0, 0, 9))), "What", "is it?")
        answer, total, first, second = out.splitlines()
        assert answer == "The total is 42."
        assert f"of 72 visual tokens {reused} reused, {compiled} compiled, 8 refreshed" in total
        assert f"  {outcome}  " in first and f"  {outcome}  " in second
    assert engine.requests[0].messages[0].parts[2].text == "What is it?"  # type: ignore[union-attr]


def test_options_reach_the_service(api: httpx.Client, engine: FakeEngine) -> None:
    run(
        api,
        "chat",
        "--policy",
        "full",
        "--mode",
        "bypass",
        "--system",
        "Be brief.",
        "--max-tokens",
        "3",
        "Hm?",
    )
    (request,) = engine.requests
    assert (request.cache.policy, request.cache.mode, request.sampling.max_tokens) == ("full", "bypass", 3)
    assert request.messages[0].role == "system"


def test_conversation_keeps_its_turns(
    api: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["First?", "  ", "Second?"])

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    run(api, "chat", "-i", data_url(plain()))
    assert [message.role for message in engine.requests[1].messages] == ["user", "assistant", "user"]
    assert len(engine.requests[1].images) == 1


def test_refusals_end_with_1_and_the_reason(api: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(api.base_url)
    assert main(["--url", url, "chat", "--policy", "nonsense", "x"]) == 1
    assert "unknown_policy" in capsys.readouterr().err
    assert main(["--url", url, "chat", "-i", "/no/such/file.png", "x"]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["--url", "http://127.0.0.1:1", "cache", "stats"]) == 1
    assert "No answer from the service" in capsys.readouterr().err


def test_failure_in_the_stream_is_told(
    api: httpx.Client, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "one"),
        Failed(request.id, "engine_stopped", "The worker stopped."),
    ]
    assert main(["--url", str(api.base_url), "chat", "x"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("one\n", "error: The worker stopped.\n")


def test_key_is_sent(start: Start) -> None:
    api = start(api_keys="alice:sk-alice-1", admin_key="sk-operator")
    run(api, "--key", "sk-alice-1", "chat", "x")
    run(api, "--key", "sk-operator", "cache", "stats")
    assert main(["--url", str(api.base_url), "--key", "sk-alice-1", "cache", "stats"]) == 1


def test_cache_verbs(api: httpx.Client, engine: FakeEngine) -> None:
    for key in KEYS:
        engine.cache.put(key)
    lines = run(api, "cache", "stats").splitlines()
    assert lines[0].split()[:2] == ["tier", "entries"]
    assert lines[1].startswith("decoded") and lines[2].startswith("memory")
    listed = run(api, "cache", "ls", "--tenant", "default").splitlines()
    assert [line.split()[0] for line in listed] == ["key", *KEYS]
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
    assert run(api, "cache", "clear", "--include-pinned", "--tenant", "default").startswith(
        "removed 1 entries"
    )
    picture = tmp_path / "page.png"
    picture.write_bytes(plain())
    assert run(api, "cache", "warm", str(picture), "--tenant", "alice").startswith(f"{picture}: miss ")
    assert engine.requests[0].tenant == "alice"
    assert main(["--url", str(api.base_url), "cache", "warm", str(picture), "data:,x"], io.StringIO()) == 1


def test_pins(api: httpx.Client, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    for key in KEYS:
        engine.cache.put(key)
    assert run(api, "cache", "pin", KEYS[0], KEYS[1]) == f"pinned {KEYS[0]}\npinned {KEYS[1]}\n"
    assert run(api, "cache", "pin", KEYS[1], "--ttl", "60") == f"pinned {KEYS[1]}\n"
    listed = run(api, "cache", "ls").splitlines()
    assert [line.split()[-1] for line in listed] == ["pinned", "hard", "soft", "-"]
    assert run(api, "cache", "unpin", KEYS[0]) == f"unpinned {KEYS[0]}\n"
    assert [engine.cache.held[key].pinned for key in KEYS] == ["", "soft", ""]
    assert main(["--url", str(api.base_url), "cache", "unpin", KEYS[0]]) == 1
    assert "not pinned" in capsys.readouterr().err


def test_quotas(api: httpx.Client, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(api, "cache", "quota").splitlines() == ["tenant  quota  held"]
    assert run(api, "cache", "quota", "alice", "2GiB") == "alice may hold 2.0 GiB in each tier\n"
    run(api, "cache", "quota", "bob?", "1M")  # whatever is typed stays one name
    assert engine.cache.limits == {"alice": 2**31, "bob?": 2**20}
    assert [line.split() for line in run(api, "cache", "quota", "alice").splitlines()] == [
        ["tenant", "quota", "held"],
        ["alice", "2.0", "GiB", "0", "B"],
    ]
    assert len(run(api, "cache", "quota").splitlines()) == 3
    assert run(api, "cache", "quota", "alice", "none") == "alice has no quota\n"
    assert main(["--url", str(api.base_url), "cache", "quota", "alice"]) == 1
    assert "entry_not_found" in capsys.readouterr().err


def test_bench_tells_what_its_users_saw(api: httpx.Client, engine: FakeEngine) -> None:
    images = [data_url(plain()), data_url(plain((0, 0, 9)))]
    lines = run(api, "bench", *images, "--requests", "5", "--users", "2", "--max-tokens", "3").splitlines()
    assert lines[0].startswith("5 answers in ") and lines[0].endswith(" s, 0 failed")
    assert [line.split("  ")[0] for line in lines[1:]] == ["throughput", "first token", "hit ratio"]
    assert lines[-1].endswith(" of 10 images)")
    assert [request.sampling.max_tokens for request in engine.requests] == [3] * 5


def test_bench_counts_failures_by_their_reason(
    api: httpx.Client, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.script = fails("queue_full", "Full.")
    assert main(["--url", str(api.base_url), "bench", data_url(plain()), "--requests", "3"]) == 1
    captured = capsys.readouterr()
    assert "0 answers in " in captured.out and "  3 x Full. (queue_full)\n" in captured.out
    assert captured.err == "error: 3 of 3 requests failed\n"


def test_bench_figures() -> None:
    seen = [Seen(i / 1000, 10, 2, 1) for i in range(100, 0, -1)]
    assert bench_lines(seen, ["Late.", "Lost.", "Late."], 4.0) == [
        "100 answers in 4.00 s, 3 failed",
        "  2 x Late.",
        "  1 x Lost.",
        "throughput   25.00 requests/s, 250.0 tokens/s",
        "first token  p50 50.0 ms, p99 99.0 ms",
        "hit ratio    50% (100 of 200 images)",
    ]


def test_bench_names_the_nearest_rank_of_few() -> None:
    seen = [Seen(i / 1000, 10, 2, 1) for i in (1, 2, 3)]
    assert "first token  p50 2.0 ms, p99 3.0 ms" in bench_lines(seen, [], 1.0)


def test_interrupting_a_command_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.cli.client.Service.call", interrupted)
    assert main(["cache", "stats"]) == 130


def test_listing_goes_on_to_the_last_page(api: httpx.Client, engine: FakeEngine) -> None:
    keys = [f"{i:064x}" for i in range(201)]
    for key in keys:
        engine.cache.put(key)
    head, *rows = run(api, "cache", "ls").splitlines()
    assert head.split()[0] == "key" and [row.split()[0] for row in rows] == keys


def test_serve_hands_its_options_to_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL", "HOST", "PORT", "DEMO"):
        monkeypatch.setenv(f"CONDUIT_{name}", "from before")
    monkeypatch.setattr("service.__main__.load_settings", _refuse)
    assert main(["serve", "some/model", "--port", "9000", "--demo", "--host", ""]) == 2
    assert [os.environ[f"CONDUIT_{name}"] for name in ("MODEL", "HOST", "PORT", "DEMO")] == [
        "some/model",
        "",
        "9000",
        "true",
    ]


def _refuse() -> Settings:
    raise SettingsError("not today")


def test_listing_an_empty_store_is_a_header(api: httpx.Client) -> None:
    assert run(api, "cache", "ls").split()[0] == "key"


@pytest.mark.parametrize(
    ("text", "expected"), [("500", 500), ("64K", 65536), ("1.5GiB", 3 * 2**29), ("2mb", 2**21), ("10B", 10)]
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size(text) == expected


def test_bad_command_lines_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [],
        ["cache"],
        ["cache", "evict", "--bytes", "lots"],
        ["cache", "quota", "alice", "lots"],
        ["chat", "--mode", "never", "x"],
        ["bench"],
        ["bench", "x", "--users", "65"],
    ):
        with pytest.raises(SystemExit) as caught:
            parser().parse_args(arguments)
        assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "not a size: lots" in told and "not a number from 1 to 64: 65" in told


def test_numbers_are_shown_with_units() -> None:
    assert [binary(n) for n in (0, 1023, 1024, 3 * 2**29, 2**51)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
        "2048.0 TiB",
    ]
    assert [age(n) for n in (-1, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
