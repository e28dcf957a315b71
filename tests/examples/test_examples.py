"""Every example runs as it stands, against a real service, and stays short."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import model_path
from tests.e2e.live import Live

EXAMPLES = Path(__file__).parents[2] / "examples"
# What each must say, in this order.
SAYS = {
    "ask.py": [
        "What is A on the red page?  ->  four is A on the red page.",
        "visual tokens: 36 compiled 0 reused 0 refreshed 0 chained",
        "Please read C from the red page.  ->  two, read from the red page.",
        "visual tokens: 0 compiled 0 reused 0 refreshed 36 chained",
    ],
    "openai_sdk.py": ["B three, E one, H five.", "conduit: 36 of 36 visual tokens computed"],
    "refresh_picture.py": ["refresh.png: 0 refreshed 4 refreshed"],
    "cache_admin.py": [
        '"outcome":"miss"',
        "memory: ",
        "lmdb: ",
        "96 x 96",
        "0 entries unused for an hour",
        "removed ",
    ],
}
MOST_LINES = 40

__all__ = ["model_path"]


@pytest.fixture(scope="module")
def live(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("examples"), model_path) as service:
        yield service


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


def run(name: str, url: str) -> subprocess.CompletedProcess[str]:
    """The last command that its own docstring names."""
    head = (EXAMPLES / name).read_text().split('"""')[1]
    command = head.strip().splitlines()[-1]
    assert command.endswith(f"examples/{name}")
    environment = {**os.environ, "CONDUIT_URL": url, "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        command, shell=True, cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("name", SAYS)
def test_example_runs_and_says_what_it_should(live: Live, name: str) -> None:
    done = run(name, live.url)
    assert done.returncode == 0, done.stderr
    place = 0
    for text in SAYS[name]:
        assert text in done.stdout[place:], done.stdout
        place = done.stdout.index(text, place)


def test_without_a_service_the_first_example_says_so() -> None:
    done = run("ask.py", "http://127.0.0.1:9")
    assert done.returncode == 1 and done.stderr.startswith("no service at http://127.0.0.1:9: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", SAYS)
def test_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= MOST_LINES
