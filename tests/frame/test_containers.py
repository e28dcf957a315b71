"""The files for containers fit together, and with the settings and the code."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker/api.Dockerfile").read_text()
SETTINGS = {f"CONDUIT_{name.upper()}" for name in Settings.model_fields}


def loaded(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / path).read_text())
    return found


COMPOSE = loaded("docker-compose.yml")
API = COMPOSE["services"]["api"]


def image_environment() -> dict[str, str]:
    block = re.search(r"^ENV (.*?[^\\])\n", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return dict(re.findall(r"(\w+)=(\S+)", block[1]))


def example_lines() -> list[tuple[str, str]]:
    """Settings of .env.example, taken off their '#'."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return [(m[1], m[2]) for line in lines if (m := re.fullmatch(r"#?([A-Z_]+)=(.*)", line))]


def test_u5_settings_come_from_a_file_that_may_be_missing() -> None:
    assert API["env_file"] == [{"path": ".env", "required": False}]
    assert set(API["environment"]) == {"CONDUIT_HOST", "CONDUIT_PORT", "CONDUIT_STORE_PATH"}
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_u5_the_example_names_settings_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = example_lines()
    assert len(lines) > 8
    ours = dict(pair for pair in lines if pair[0] != "HF_TOKEN")
    assert ours.keys() <= SETTINGS
    assert not ours.keys() & set(API["environment"])
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    assert Settings().redis_url is not None  # all of them together can work


def test_u5_the_image_can_send_traces() -> None:
    assert "-r requirements.lock -r requirements-otel.lock" in " ".join(DOCKERFILE.split())


def test_u4_a_hub_model_is_kept_and_a_hopeless_start_ends() -> None:
    mounts = {volume.split(":")[1]: volume.split(":")[0] for volume in API["volumes"]}
    environment = image_environment()
    assert mounts[environment["HF_HOME"]] == "hub"
    assert mounts[API["environment"]["CONDUIT_STORE_PATH"]] == "store"
    assert set(mounts.values()) <= set(COMPOSE["volumes"])
    owned = re.search(r"install -d -o conduit (.*)", DOCKERFILE)
    assert owned is not None and owned[1].split() == list(mounts)
    assert set(re.search(r"^VOLUME (.*)", DOCKERFILE, re.MULTILINE)[1].split()) == set(mounts)  # type: ignore[index]
    assert API["restart"] == "on-failure:5"


def test_the_compose_file_and_the_image_agree_on_the_port() -> None:
    environment = image_environment()
    assert {name for name in environment if name.startswith("CONDUIT_")} <= SETTINGS
    for name, value in API["environment"].items():
        assert environment[name] == value
    port = environment["CONDUIT_PORT"]
    assert API["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"EXPOSE {port}" in DOCKERFILE
    assert 'os.environ[\\"CONDUIT_PORT\\"]' in DOCKERFILE


def test_u6_prometheus_and_grafana_reach_what_they_show() -> None:
    services = COMPOSE["services"]
    watching = {name for name, service in services.items() if service.get("profiles") == ["observability"]}
    assert watching == {"prometheus", "grafana"}
    (job,) = loaded("docker/observability/prometheus/prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"api:{image_environment()['CONDUIT_PORT']}"]}]
    assert "api" in image_environment()["CONDUIT_TRUSTED_HOSTS"].split(
        ","
    )  # an open service is asked by few names
    sources = loaded("docker/observability/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert [source["url"] for source in sources] == ["http://prometheus:9090"]
    for service in services.values():
        assert "network_mode" not in service and "networks" not in service  # all on the one of the project
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_dir()


def test_nothing_is_published_beyond_this_machine() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_the_gpu_file_changes_what_is_there() -> None:
    changed = loaded("docker-compose.gpu.yml")["services"]
    assert changed.keys() == {"api"}
    assert changed["api"]["build"]["args"].keys() <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert changed["api"]["environment"].keys() <= SETTINGS


def test_the_image_has_every_package_that_the_service_imports() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.MULTILINE))
    ours = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    imported = {
        name.split(".")[0]
        for package in copied & ours
        for path in (ROOT / package).rglob("*.py")
        for name in imports(path)
    }
    assert imported & ours <= copied
    assert "models" in copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    taken = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    locks, project = (
        {"requirements.lock", "requirements-otel.lock"},
        {"pyproject.toml", "README.md", "LICENSE"},
    )
    assert taken == copied | locks | project


def test_the_image_has_the_command() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert (
        f"RUN for package in {' '.join(packages)}; do" in DOCKERFILE
        and "--no-deps --editable ." in DOCKERFILE
    )
    assert image_environment()["PATH"].split(":")[0] == "/app/.venv/bin"


def imports(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    found: set[str] = set()
    for node in tree:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found
