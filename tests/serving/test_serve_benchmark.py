"""The serving benchmark reads streams rightly, counts what fails, and runs from end to end."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from benchmarks import serve
from benchmarks.serve_load import Asked, BadAnswer, Recording, Round, chunks, read

ASKED = Asked(b"{}", ("hit",))
REPORT = {"images": [{"outcome": "hit"}], "fallback": None, "timings": {"ttft_ms": 30.0}}


def data(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def text(content: str) -> bytes:
    return data({"choices": [{"delta": {"content": content}}]})


END = data({"choices": [{"delta": {}}], "kv_report": REPORT}) + data(
    {"choices": [], "usage": {"completion_tokens": 3}}
)
DONE = b"data: [DONE]\n\n"
WHOLE = ((1.0, text("")), (1.5, b": ping\n\n" + text("a")), (1.75, text("b") + text("c")), (2.0, END + DONE))


def test_times_are_those_of_the_pieces_that_hold_text() -> None:
    sample = read(Recording(ASKED, 200, 1.0, WHOLE))
    assert (sample.ttft, sample.total, sample.tokens) == (0.5, 1.0, 3)
    assert sample.gaps == (0.25, 0.0)
    assert sample.overhead == pytest.approx(0.47)


def test_chunks_may_be_cut_anywhere() -> None:
    stream = b"".join(piece for _, piece in WHOLE)
    cut = [(float(at), stream[at : at + 7]) for at in range(0, len(stream), 7)]
    assert [chunk for _, chunk in chunks(cut)] == [chunk for _, chunk in chunks(WHOLE)]


@pytest.mark.parametrize(
    ("recording", "why"),
    [
        (Recording(ASKED, 429, 0.0, ()), "status 429"),
        (Recording(ASKED, 200, 0.0, WHOLE[:-1]), "broke off"),
        (Recording(ASKED, 200, 0.0, ((1.0, data({"error": {"code": "internal_error"}})),)), "internal_error"),
        (Recording(Asked(b"{}", ("miss",)), 200, 0.0, WHOLE), "images were"),
    ],
)
def test_what_is_no_answer_is_an_error_and_no_sample(recording: Recording, why: str) -> None:
    with pytest.raises(BadAnswer, match=why):
        read(recording)
    done = Round.of([recording, "the connection failed", Recording(ASKED, 200, 1.0, WHOLE)], seconds=2.0)
    figures = done.figures()
    assert (figures["requests"], figures["errors"], figures["tokens_per_second"]) == (1, 2, 1.5)


@pytest.mark.slow
def test_it_runs_from_end_to_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "--quick"])
    assert serve.main() == 0
    printed = capsys.readouterr().out
    for ratio in ("batched_8_vs_single_throughput", "front_end_overhead_ms_p50", "itl_p99_vs_p50", "errors"):
        assert f"  {ratio} " in printed
