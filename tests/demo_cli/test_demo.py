"""The demo's parts against a real service, and the demo as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.asking import Refused, ask
from demo.scenario import request, steps, under_full_prefill
from demo.service_process import ROOT, ServiceDidNotStart, ServiceProcess
from tests.e2e.conftest import model_path
from tests.e2e.live import Live

__all__ = ["model_path"]


@pytest.fixture(scope="module")
def live(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("demo"), model_path, chain="off") as service:
        yield service


def test_the_steps_ask_about_the_same_pages_in_the_five_ways() -> None:
    found = steps()
    assert [step.name for step in found] == ["a", "b", "c", "d", "e"]
    assert len({frozenset(step.pages) for step in found}) == 1
    assert found[0].pages == found[1].pages != found[2].pages == found[3].pages == found[4].pages
    assert found[0].system is None
    assert found[2].system == found[4].system is not None
    assert [step.restart for step in found] == [False, False, False, True, False]
    assert found[4].policy == "full"
    assert found == steps()


def test_answers_stream_and_the_report_tells_cold_from_warm(live: Live) -> None:
    first, second, *_ = steps()
    pieces: list[str] = []
    cold = ask(live.api, request(first, live.url), pieces.append)
    assert cold.text == "".join(pieces)
    assert cold.outcomes() == {"miss": 4}
    assert cold.report["reused_tokens"] == 0 < cold.report["compiled_tokens"]
    warm = ask(live.api, request(second, live.url))
    assert warm.outcomes() == {"hit (decoded)": 4}
    assert warm.report["compiled_tokens"] == 0 < warm.report["reused_tokens"]
    assert 0 < warm.engine_ttft < warm.total
    full = ask(live.api, under_full_prefill(request(second, live.url)))
    assert full.report["refreshed_tokens"] == full.report["visual_tokens"] == warm.report["visual_tokens"]


def test_errors_are_told_in_the_service_s_words(live: Live) -> None:
    with pytest.raises(Refused, match=r"\(unknown_policy\)"):
        ask(live.api, {**request(steps()[0], live.url), "cache": {"policy": "none such"}})


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ServiceDidNotStart, match="CONDUIT_NONE_SUCH"),
        ServiceProcess(tmp_path, none_such="1"),
    ):
        pass


@pytest.mark.slow
def test_the_demo_shows_every_step_and_the_model_answers_all_of_them() -> None:
    with run_demo() as demo:
        done = " ".join(demo.communicate(timeout=1200)[0].split())
    assert "NOT THE SAME" not in done
    for text in (
        "4 miss",
        "4 hit (decoded)",
        "4 hit (lmdb)",
        "not looked up",
        "RANDOM weights",
        "times sooner",
    ):
        assert text in done
    assert done.count("the same") >= 5
    assert "\x1b" not in done


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_and_its_service() -> None:
    with run_demo() as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("a) "):
                break
        services = children(demo.pid)
        assert services
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait(60) == 130
    assert "Stopped." in rest
    assert not [pid for pid in services if is_running(pid)]


def run_demo() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()
