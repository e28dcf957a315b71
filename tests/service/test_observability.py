"""Dashboard and alerts ask for metrics and label values that the service really gives."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]

from service.errors import ERROR_TABLE
from tests.service.conftest import Start
from tests.service.images.pictures import data_url, plain

FOLDER = Path(__file__).parents[2] / "docker" / "observability"
METRIC = re.compile(r"\b(?:conduit|process)_[a-z0-9_]+")


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "grafana/dashboards/conduit.json").read_text())
    return loaded


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "prometheus/alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


@pytest.fixture
def exposed(api: httpx.Client) -> set[str]:
    for outcome in ("hit", "miss"):
        body = {"prompt": outcome, "images": [data_url(plain())], "stream": True}
        api.post("/v1/chat", json=body).raise_for_status()
    api.post("/v1/chat", json={"prompt": "x", "images": ["data:,x"]})
    text = api.get("/metrics").text
    # A counter without a value yet is announced and has no sample.
    announced = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    histograms = {f"{name}_bucket" for name, kind in announced if kind == "histogram"}
    return {name for name, _ in announced} | histograms


def test_dashboard_asks_for_what_is_there(exposed: set[str]) -> None:
    queries = dashboard_queries()
    assert len(queries) > 40
    asked = {name for query in queries for name in METRIC.findall(query)}
    assert asked - exposed == set()


def test_every_metric_is_on_the_dashboard(exposed: set[str]) -> None:
    asked = {name for query in dashboard_queries() for name in METRIC.findall(query)}
    not_shown = {name for name in exposed if name not in asked and f"{name}_bucket" not in asked}
    assert {name for name in not_shown if not name.endswith("_created")} <= {
        "conduit_store_bytes_logical",
        "conduit_store_hits_total",  # shown as the hits of requests
        "conduit_store_write_queue",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    }


def test_alerts_ask_for_what_is_there_and_say_what_to_do(exposed: set[str]) -> None:
    rules = alert_rules()
    assert len(rules) >= 8
    for rule in rules:
        assert set(METRIC.findall(rule["expr"])) <= exposed, rule["alert"]
        assert rule["for"] and rule["labels"]["severity"] in {"page", "warn"}
        assert rule["annotations"]["summary"] and rule["annotations"]["action"]


def test_outcomes_in_queries_are_codes_that_exist() -> None:
    queries = [*dashboard_queries(), *(rule["expr"] for rule in alert_rules())]
    named = {
        code
        for query in queries
        for codes in re.findall(r'outcome=~?"([a-z_|]+)"', query)
        for code in codes.split("|")
    }
    assert named - set(ERROR_TABLE) == {"hit"}


def test_queries_are_promql() -> None:
    for query in (*dashboard_queries(), *(rule["expr"] for rule in alert_rules())):
        # Grafana writes the interval in; the instances stand in a text.
        promql_parser.parse(query.replace("$__rate_interval", "5m"))


def test_dashboard_is_one_that_grafana_lays_out_and_can_fill() -> None:
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) == 23  # Grafana's grid
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]+)", json.dumps(board))) == variables
    for panel in panels:
        targets = panel.get("targets", [])
        assert len({target["refId"] for target in targets}) == len(targets), panel["title"]
        assert bool(targets) == (panel["type"] != "row"), panel["title"]


def test_provisioning_agrees_with_itself() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((FOLDER / "grafana/provisioning/dashboards/conduit.yml").read_text())[
        "providers"
    ]
    compose = yaml.safe_load((FOLDER.parents[1] / "docker-compose.yml").read_text())["services"]
    mounts = dict(volume.split(":")[:2] for volume in compose["grafana"]["volumes"])
    assert source["url"] == "http://prometheus:9090" and "prometheus" in compose
    assert mounts["./docker/observability/grafana/dashboards"] == provider["options"]["path"]
    assert board_variable("datasource")["query"] == source["type"]


def board_variable(name: str) -> dict[str, Any]:
    (found,) = (one for one in dashboard()["templating"]["list"] if one["name"] == name)
    return dict(found)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian's package prometheus)")
@pytest.mark.parametrize(
    "check",
    ["check config prometheus.yml", "check rules --lint-fatal alerts.yml", "test rules alerts_test.yml"],
)
def test_promtool_is_content(check: str) -> None:
    done = subprocess.run(
        ["promtool", *check.split()], cwd=FOLDER / "prometheus", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_of_its_own() -> None:
    tests = (FOLDER / "prometheus/alerts_test.yml").read_text()
    for rule in alert_rules():
        assert rule["alert"] in tests, rule["alert"]


def test_what_alerts_count_is_there_before_it_happens(start: Start) -> None:
    """`rate` does not see the count with which a series begins."""
    outcome = re.compile(r'(\w+)\{[^}]*outcome=~?"([a-z_|]+)"')
    named = {
        f'{name}{{outcome="{one}"}} 0.0'
        for rule in alert_rules()
        for name, several in outcome.findall(rule["expr"])
        for one in several.split("|")
    }
    assert len(named) > 4
    assert named <= set(start().get("/metrics").text.splitlines())
