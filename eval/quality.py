"""The figures to compare between commits: `python -m eval.quality` gathers them into `results/quality.json`.

`<set>.<policy>.r<percent>` is accuracy as a share of full prefill (page sets: higher is better) or mean KL as a share
of plain reuse (sets that start with smollm2: lower is better). `whole.<policy>.r<percent>` is accuracy of whole answers
among those that full prefill gets right and the words alone do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.result import NotMeasured, write_result
from eval.status import exit_status

RESULTS = Path(__file__).parent / "results"
SOURCES = ("shifted_prefix", "smollm2_judge", "correction", "long_chunks")


def gather(results: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Settings and ratios of the evaluations that were run; the page sets are not optional."""
    settings: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name in SOURCES:
        file = results / f"{name}.json"
        if not file.exists():
            if name == SOURCES[0]:
                raise NotMeasured(f"run `python -m eval.{name}` first")
            continue
        found = json.loads(file.read_text())
        settings[name] = {key: found[key] for key in ("commit", "date", "settings", "machine")}
        ratios |= found["ratios"]
    return settings, ratios


@exit_status()
def main() -> None:
    settings, ratios = gather(RESULTS)
    print(write_result(__file__, settings, ratios, {}))


if __name__ == "__main__":
    raise SystemExit(main())
