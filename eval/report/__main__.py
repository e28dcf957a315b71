"""One page from the committed results: `python -m eval.report` writes `results/report.md` and its curves.

Reads what the scripts named in `SCRIPTS` have written; what was not run is named as such. Every figure in its text is
taken from there, from the paper (`eval.paper`) or from the policies' own arithmetic.
"""

from __future__ import annotations

import json
from pathlib import Path

from eval.report.page import page

RESULTS = Path(__file__).parents[1] / "results"
SCRIPTS = (
    "correction",
    "accuracy",
    "shifted_prefix",
    "controls",
    "ablations",
    "own_rule",
    "residual",
    "smollm2_judge",
    "long_chunks",
    "published",
)


def main() -> int:
    found = {n: json.loads(f.read_text()) for n in SCRIPTS if (f := RESULTS / f"{n}.json").exists()}
    if not found:
        print("nothing was measured yet")
        return 1
    (RESULTS / "report.md").write_text(page(found, RESULTS))
    print(RESULTS / "report.md")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
