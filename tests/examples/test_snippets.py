"""Every snippet of the documentation runs as it is printed, beside a service such as `make serve` starts.

Blocks of `sh` and `python` are run, those of `json` are what the service answers, `console` is for a person to type,
and `text` is a drawing.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.policies.base import POLICIES
from service.chat.answer_schemas import ReportBody
from tests.e2e.conftest import model_path
from tests.e2e.live import Live
from tests.examples.fences import ROOT, Fence, fences

PRINTED = "127.0.0.1:8000"
KEYS = {
    "api_keys": "alice:sk-alice-change-me,bob:sk-bob-change-me",
    "admin_key": "sk-operator-change-me",
}
RED, BLUE = "four is A on the red page.", "B three, E one, H five."
NONE = "(0 visual tokens compiled)"
VALUES = [
    *(("four", "A", "red"), ("two", "C", "red"), ("seven", "F", "red")),
    *(("three", "B", "blue"), ("one", "E", "blue")),
]
# What each block that is run must print, in this order.
SAYS = {
    "README.md:2": [RED, "68 visual tokens compiled", "0 visual tokens reused", "4 visual tokens refreshed"],
    "README.md:3": [
        f"{value} is {key} on the {page} page. {NONE}\n{value}, read from the {page} page. {NONE}"
        for value, key, page in VALUES
    ],
    "docs/api.md:1": ['"content":"B', '"kv_report":', "data: [DONE]"],
    "docs/api.md:2": [RED, "'policy': 'conduit', 'refresh_ratio': 0.2"],
    "docs/api.md:4": [RED],
    "docs/operations.md:1": [
        *(BLUE, "of 72 visual tokens", RED, "of 36 visual tokens", "lmdb", "96x96", "would remove 0 entries"),
        *(
            "page-1.png: miss",
            "pinned ",
            "alice may hold 2.0 GiB in each tier",
            "records checked, removed: none",
        ),
        *("20 answers in ", "hit ratio    100%"),
    ],
    "docs/your-own.md:2": [BLUE, '"policy":"full"'],
    "docs/your-own.md:3": ["zero is D on the cyan page."],
    "docs/your-own.md:5": [RED],
    "docs/your-own.md:6": ["alice", "alice may hold 2.0 GiB", 'conduit_requests_total{outcome="ok"}'],
    "models/page-reader/README.md:1": [],
}
# A file to be put somewhere, tested below.
FILES = {"docs/extending.md:1"}
SLOW = {"docs/operations.md:1", "models/page-reader/README.md:1"}
RUN = [fence for fence in fences() if fence.language in ("sh", "python") and fence.name not in FILES]

__all__ = ["model_path"]


@dataclass(frozen=True)
class Services:
    """One as `make serve` starts it, and one with the keys of docs/your-own.md."""

    open: Live
    closed: Live

    def printed_for(self, fence: Fence) -> Live:
        return self.closed if "change-me" in fence.code else self.open


@pytest.fixture(scope="module")
def services(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folders = tmp_path_factory.mktemp("open"), tmp_path_factory.mktemp("closed")
    with Live(folders[0], model_path) as everybodys, Live(folders[1], model_path, **KEYS) as closed:
        yield Services(everybodys, closed)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the checkout, in which snippets may leave files."""
    for entry in ROOT.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def run(fence: Fence, live: Live, folder: Path) -> str:
    """What the block prints, with the address of `live` for that of `make serve`."""
    address = live.url.removeprefix("http://")
    interpreter = [sys.executable, "-"] if fence.language == "python" else ["sh", "-eu"]
    done = subprocess.run(
        interpreter,
        input=fence.code.replace(PRINTED, address),
        cwd=folder,
        env={**os.environ, "CONDUIT_URL": live.url, "NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_block_says_what_it_is() -> None:
    known = {"sh", "python", "json", "console", "text"}
    assert [fence.name for fence in fences() if fence.language not in known] == []
    assert {fence.name for fence in RUN} == set(SAYS)


@pytest.mark.parametrize(
    "fence",
    [pytest.param(f, marks=pytest.mark.slow if f.name in SLOW else (), id=f.name) for f in RUN],
)
def test_u2_a_snippet_runs_as_printed(services: Services, checkout: Path, fence: Fence) -> None:
    printed = run(fence, services.printed_for(fence), checkout)
    place = 0
    for text in SAYS[fence.name]:
        assert text in printed[place:], printed
        place = printed.index(text, place)


def test_the_report_in_the_documentation_is_one_that_is_answered() -> None:
    report, error = (json.loads(fence.code) for fence in fences() if fence.language == "json")
    body = ReportBody.model_validate(report["kv_report"])
    kinds = (body.reused_tokens, body.compiled_tokens, body.refreshed_tokens, body.chained_tokens)
    assert sum(kinds) == body.visual_tokens
    assert set(report["kv_report"]) == set(ReportBody.model_fields)
    assert set(error["error"]) == {"message", "type", "param", "code"}


def test_the_policy_of_extending_md_can_be_asked_for(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fence,) = (fence for fence in fences() if fence.name in FILES)
    (tmp_path / "loudest.py").write_text(fence.code)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(POLICIES)
    importlib.import_module("loudest")
    try:
        with Live(tmp_path, model_path, policy="loudest") as live:
            pages = [f"{live.url}/demo/pages/{code}.png" for code in ("red_71_A05k4_C11m2", "blue_4_B07m3")]
            asked = {"prompt": "What is B on the blue page?", "images": pages, "max_tokens": 2}
            report = live.api.post("/v1/chat", json=asked).raise_for_status().json()["kv_report"]
    finally:
        added = POLICIES.keys() - before
        for name in added:
            del POLICIES[name]
    assert added == {"loudest"}
    assert (report["policy"], report["refreshed_tokens"]) == ("loudest", 4)


def test_make_serve_has_the_pages_that_snippets_ask_about() -> None:
    printed = subprocess.run(["make", "-n", "serve"], cwd=ROOT, capture_output=True, text=True).stdout
    assert "CONDUIT_DEMO=${CONDUIT_DEMO-true}" in printed and "-m service" in printed


def test_u2_the_first_block_of_the_readme_is_a_new_users_commands() -> None:
    first = next(fence for fence in fences() if fence.page == "README.md")
    commands = [line.partition("#")[0].strip() for line in first.code.splitlines()]
    assert (first.language, commands) == ("console", ["make demo", "make test", "make serve"])


@pytest.mark.parametrize(
    "fence", [f for f in fences() if f.language == "console"], ids=lambda fence: fence.name
)
def test_what_a_person_types_exists(fence: Fence) -> None:
    lines = [line.partition("#")[0].strip() for line in fence.code.splitlines()]
    targets = [line.rsplit("make ", 1)[1].split() for line in lines if "make " in line]
    for target in targets:
        assert subprocess.run(["make", "-n", *target], cwd=ROOT, capture_output=True).returncode == 0
    assert all(
        line.startswith(("make ", "docker ", "export ", "CONDUIT_", "PIP_", "PYTHON=", "")) for line in lines
    )
