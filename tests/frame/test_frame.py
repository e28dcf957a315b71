"""The frame around the code: pins agree, scripts are there, links lead somewhere, no file names a machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = sorted(
    path
    for folder in (".", "docs", "docker", "models")
    for path in (ROOT / folder).glob("**/*.md" if folder != "." else "*.md")
)


def pins(name: str) -> dict[str, str]:
    """{normalised package: version} of a lock file, every line of which must be one exact pin."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith(("#", "-r ")) or not line:
            continue
        package, version = line.split("==")
        found[normal(package)] = version
    return found


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def test_the_lock_files_pin_what_pyproject_pins() -> None:
    run, otel, dev = (pins(f"requirements{kind}.lock") for kind in ("", "-otel", "-dev"))
    assert len(run | otel | dev) == len(run) + len(otel) + len(dev)
    extras = PROJECT["optional-dependencies"]
    for needed, locked in (
        (PROJECT["dependencies"], run),
        (extras["otel"], run | otel),
        (extras["dev"], run | otel | dev),
    ):
        for requirement in needed:
            package, version = requirement.split("==")
            assert locked[normal(package)] == version


def test_torch_is_spelled_so_that_every_machine_may_choose_its_build() -> None:
    assert "torch==2.13.0" in (ROOT / "requirements.lock").read_text().splitlines()


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-otel.lock", "requirements-dev.lock"])
def test_lock_files_name_no_index(name: str) -> None:
    assert not re.search(r"://|--(extra-)?index|--find-links", (ROOT / name).read_text())


@pytest.mark.parametrize("target", ["demo", "serve", "test", "test-slow", "check", "bench", "install"])
def test_make_knows_its_targets(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci/run", ROOT / "benchmarks/gpu.sh"]
)
def test_scripts_parse_and_may_be_run(path: Path) -> None:
    shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
    assert subprocess.run([shell, "-n", str(path)]).returncode == 0
    assert path.stat().st_mode & 0o111


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
