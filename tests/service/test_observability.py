"""Dashboard and alerts ask for metrics and label values that the service really gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from service.errors import ERROR_TABLE
from tests.service.pictures import data_url, plain

FOLDER = Path(__file__).parents[2] / "docker" / "observability"
METRIC = re.compile(r"\bconduit_[a-z0-9_]+")


def dashboard_queries() -> list[str]:
    dashboard = json.loads((FOLDER / "grafana/dashboards/conduit.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


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


def test_compose_file_mounts_what_is_there() -> None:
    compose = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (FOLDER / source).is_dir(), source
