"""`chat`, `explain`, `bench`, `models` and `health` against the real service on the fake engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from engine.messages import Failed, TextDelta
from service.cli.bench import Seen, bench_lines, figures
from service.cli.explain import Layer, drawn
from tests.service.cli.running import conduit, refused, run
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, accepted, fails
from tests.service.images.pictures import data_url, plain


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
    options = ("--policy", "full", "--mode", "bypass", "--system", "Be brief.", "--max-tokens", "3")
    run(api, "chat", *options, "--refresh-ratio", "0.33", "Hm?")
    (request,) = engine.requests
    assert (request.cache.policy, request.cache.mode, request.sampling.max_tokens) == ("full", "bypass", 3)
    assert request.messages[0].role == "system" and request.cache.refresh_ratio == 0.33


def test_conversation_keeps_its_turns(api: httpx.Client, engine: FakeEngine) -> None:
    run(api, "chat", "-i", data_url(plain()), typed="First?\n  \nSecond?\n")
    assert [message.role for message in engine.requests[1].messages] == ["user", "assistant", "user"]
    assert len(engine.requests[1].images) == 1


def test_one_bad_question_does_not_end_a_conversation(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = fails("queue_full", "Full.")
    done = conduit("chat", "--url", str(api.base_url), typed="One?\nTwo?\n")
    assert done.exit_code == 0 and done.stderr == "error: Full. (queue_full)\n" * 2


def test_failure_in_the_stream_is_told(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "one"),
        Failed(request.id, "engine_stopped", "The worker stopped."),
    ]
    done = conduit("chat", "x", "--url", str(api.base_url))
    assert (done.exit_code, done.stdout, done.stderr) == (1, "one\n", "error: The worker stopped.\n")


def test_chat_speaks_json(api: httpx.Client) -> None:
    said = json.loads(run(api, "chat", "-i", data_url(plain()), "What?", "--json"))
    assert (said["answer"], said["finish_reason"]) == ("The total is 42.", "stop")
    assert said["kv_report"]["visual_tokens"] == 36 and said["first_text_ms"] > 0


def test_explain_draws_each_token(api: httpx.Client) -> None:
    picture = data_url(plain((9, 9, 9)))
    cold = run(api, "explain", "-i", picture, "What?").splitlines()
    assert cold[2] == "image 1: 4 of 36 refreshed"
    assert cold[3:9] == ["  ########++++"] + ["  ++++++++++++"] * 5
    warm = run(api, "explain", "-i", picture, "What?", "--layer", "states").splitlines()
    assert warm[4] == "  ............"
    scores = run(api, "explain", "-i", picture, "What?", "--layer", "scores").splitlines()
    assert (scores[3], scores[8].strip()) == ("  @@@@@@@@####", "")
    report = json.loads(run(api, "explain", "-i", picture, "What?", "--json"))
    assert report["images"][0]["explained"]["grid"] == [6, 6]
    assert (
        refused(api, "explain", "-i", "/no/such.png", "x")
        == "error: /no/such.png: No such file or directory.\n"
    )


def test_a_picture_without_grid_or_values_is_drawn_all_the_same() -> None:
    told = {"grid": None, "states": [0, 2, 3] * 30, "scores": None, "drift": [None, 0.0, 0.5] * 30}
    assert [len(row.plain) for row in drawn(told, Layer.states)] == [130, 54]
    assert drawn(told, Layer.scores)[0].plain == "  no scores of this image"
    assert drawn(told, Layer.drift)[0].plain.startswith("      @@    @@")


def test_models_and_health(api: httpx.Client, engine: FakeEngine) -> None:
    assert run(api, "models").splitlines()[0] == "test-reader: 4096 tokens"
    assert json.loads(run(api, "models", "--json"))["data"][0]["policies"] == ["conduit", "full", "reuse"]
    assert "ready, conduit " in run(api, "health")
    engine.state = replace(engine.state, ready=False, reasons=("no worker",))
    assert "not ready" in refused(api, "health")
    done = conduit("health", "--json", "--url", str(api.base_url))
    assert json.loads(done.stdout)["reasons"] == ["no worker"] and done.exit_code == 1


def test_key_is_sent(start: Start) -> None:
    api = start(api_keys="alice:sk-alice-1", admin_key="sk-operator")
    run(api, "chat", "x", "--key", "sk-alice-1")
    run(api, "cache", "stats", "--key", "sk-operator")
    assert "admin_key_required" in refused(api, "cache", "stats", "--key", "sk-alice-1")
    assert "invalid_api_key" in refused(api, "chat", "x")
    given = conduit("chat", "x", CONDUIT_URL=f"{api.base_url}/v1/", CONDUIT_API_KEY="sk-alice-1")
    assert given.exit_code == 0, given.stderr


def test_bench_tells_what_its_users_saw(api: httpx.Client, engine: FakeEngine) -> None:
    images = [data_url(plain()), data_url(plain((0, 0, 9)))]
    options = ("--requests", "5", "--users", "2", "--max-tokens", "3")
    lines = run(api, "bench", *images, *options).splitlines()
    assert lines[0].startswith("5 answers in ") and lines[0].endswith(" s, 0 failed")
    assert [line.split("  ")[0] for line in lines[1:]] == ["throughput", "first token", "hit ratio"]
    assert lines[-1].endswith(" of 10 images)")
    assert [request.sampling.max_tokens for request in engine.requests] == [3] * 5
    assert json.loads(run(api, "bench", *images, *options, "--json"))["hits"] == 10


def test_bench_counts_failures_by_their_reason(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = fails("queue_full", "Full.")
    done = conduit("bench", data_url(plain()), "--requests", "3", "--url", str(api.base_url))
    assert done.exit_code == 1
    assert "0 answers in " in done.stdout and "  3 x Full. (queue_full)\n" in done.stdout
    assert done.stderr == "error: 3 of 3 requests failed\n"


@pytest.mark.parametrize(
    ("count", "failures", "expected"),
    [
        (
            100,
            ["Late.", "Lost.", "Late."],
            [
                "100 answers in 4.00 s, 3 failed",
                "  2 x Late.",
                "  1 x Lost.",
                "throughput   25.00 requests/s, 250.0 tokens/s",
                "first token  p50 50.0 ms, p99 99.0 ms",
                "hit ratio    50% (100 of 200 images)",
            ],
        ),
        (
            3,
            [],
            [
                "3 answers in 4.00 s, 0 failed",
                "throughput   0.75 requests/s, 7.5 tokens/s",
                "first token  p50 2.0 ms, p99 3.0 ms",
                "hit ratio    50% (3 of 6 images)",
            ],
        ),
    ],
)
def test_bench_figures_name_the_nearest_rank(count: int, failures: list[str], expected: list[str]) -> None:
    seen = [Seen(i / 1000, 10, 2, 1) for i in range(count, 0, -1)]
    assert bench_lines(figures(seen, failures, 4.0)) == expected
