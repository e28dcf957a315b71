"""Result files have one shape, hold numbers only, and the README's tables are written from them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables, ttft
from benchmarks.result import NotMeasured, write_result

RATIOS = {"warm_r10_speedup": 5.25, "cold_vs_full": 1.2}


def test_a_result_file_lies_beside_its_script_and_has_the_agreed_shape(tmp_path: Path) -> None:
    path = write_result(tmp_path / "speed.py", {"rounds": 3}, RATIOS, {"anything": [1, 2]})
    assert path == tmp_path / "results" / "speed.json"
    result = json.loads(path.read_text())
    assert list(result) == ["machine", "commit", "date", "settings", "ratios", "figures"]
    assert result["ratios"] == RATIOS
    assert result["settings"] == {"rounds": 3}
    assert result["machine"]["cores"] >= 1


@pytest.mark.parametrize("ratios", [{}, {"speed": math.nan}, {"speed": math.inf}])
def test_what_was_not_measured_is_not_written(tmp_path: Path, ratios: dict[str, float]) -> None:
    with pytest.raises(NotMeasured):
        write_result(tmp_path / "speed.py", {}, ratios, {})
    assert not list(tmp_path.iterdir())


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- table: results/speed -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "README", path)
    monkeypatch.setattr(sys, "argv", ["tables"])
    return path


def test_loads_are_a_table_of_their_own(readme: Path, tmp_path: Path) -> None:
    found = {"requests_per_second": 13.42, "tokens_per_second": 120.6, "errors": 0}
    found |= {"ttft_ms": {"p50": 41.2, "p99": 1099.8}, "itl_ms": {"p50": 5.1, "p99": 21.7}}
    rounds = {"8_users": {"50_percent_hits": found}}
    (tmp_path / "benchmarks").mkdir()
    write_result(tmp_path / "benchmarks/serve.py", {}, RATIOS, {"page-reader": {"rounds": rounds}})
    readme.write_text(readme.read_text().replace("results/speed", "serve"))
    assert tables.main() == 0
    assert "| 8 | 50 % | 13.4 | 121 | 41 / 1,100 ms | 5 / 22 ms | 0 |" in readme.read_text()


def test_a_table_is_written_from_its_result_and_checked(
    readme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_result(tmp_path / "speed.py", {}, RATIOS, {})
    monkeypatch.setattr(sys, "argv", ["tables", "--check"])
    assert tables.main() == 1
    assert "old" in readme.read_text()
    monkeypatch.setattr(sys, "argv", ["tables"])
    assert tables.main() == 0
    text = readme.read_text()
    assert "| `warm_r10_speedup` | 5.25 |" in text
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["tables", "--check"])
    assert tables.main() == 0


def test_a_table_without_a_result_says_so(readme: Path) -> None:
    assert tables.main() == 0
    assert "Not measured yet." in readme.read_text()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The TTFT benchmark at its smallest, its result caught on the way to the file."""
    caught: dict[str, Any] = {}

    def catch(script: Path, settings: Any, ratios: Any, figures: Any) -> Path:
        caught.update(script=script, ratios=ratios, figures=figures)
        return script

    monkeypatch.setattr(ttft, "write_result", catch)
    small = "--shape tiny --images 2 --tokens 16 --rounds 1 --threads 1 --no-http --name try"
    monkeypatch.setattr(sys, "argv", ["ttft", *small.split()])
    assert ttft.main() == 0
    return caught


def test_the_ttft_benchmark_measures_what_it_says_and_its_table_can_be_written(
    measured: dict[str, Any],
) -> None:
    assert measured["script"].name == "try.py"
    assert {
        "warm_r10_speedup",
        "cold_vs_full",
        "k1_default_prompt_vs_reuse",
        "flops_model_error",
    } <= set(measured["ratios"])
    assert measured["ratios"]["flops_model_error"] < 0.1
    result = {"figures": json.loads(json.dumps(measured["figures"]))}
    assert len(tables.ttft(result).splitlines()) == 2 + len(tables.ARMS)
