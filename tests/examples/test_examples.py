"""Every example runs as it stands, against a real service, and stays short."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import model_path
from tests.e2e.live import Live

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each must say, whatever the model answers.
SAYS = {
    "ask.py": ["What is A on the red page?", "hit chain", "visual tokens reused"],
    "openai_sdk.py": ["conduit: ", " computed"],
    "cache_admin.py": ["memory: ", "lmdb: ", "96 x 96", "0 entries unused for an hour", "removed "],
}
MOST_LINES = 40

__all__ = ["model_path"]


@pytest.fixture(scope="module")
def live(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("examples"), model_path) as service:
        yield service


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs_and_says_what_it_should(live: Live, name: str) -> None:
    environment = {**os.environ, "CONDUIT_URL": live.url, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for text in SAYS[name]:
        assert text in done.stdout


@pytest.mark.parametrize("name", SAYS)
def test_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= MOST_LINES
