"""One change at a time to CONDUIT's rule, on the sets where rules differ most: `python -m eval.ablations`.

Table 4's form (image weight), Table 5's form (without the image coefficient, without value norms) and the other choices
in the order of refresh.md 8.4. Shares prompts and rows with `eval.shifted_prefix`. Writes `results/ablations.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.result import NotMeasured, write_result
from engine.heap import keep_large_blocks_apart
from eval.arms import described
from eval.page_prompts import PageReader
from eval.shifted_prefix import SETS, drawn_by, sweep_set
from eval.trial import Arm

RATIOS = (0.02, 0.05, 0.10)
PROMPTS = 500
DEFAULT_SETS = ("page_order", "question_first", "two_hop")


def _conduit(name: str, **options: object) -> Arm:
    return Arm(name, "conduit", tuple(options.items()))


ABLATIONS = (
    _conduit("conduit"),
    _conduit("layers_middle", score_layers="middle"),
    _conduit("layers_last_quarter", score_layers="last_quarter"),
    _conduit("values_per_head", value_mode="per_head"),
    _conduit("values_wo", value_mode="wo"),
    _conduit("values_none", value_mode="none"),
    _conduit("weight_0", image_weight=0.0),
    _conduit("weight_25", image_weight=0.25),
    _conduit("weight_50", image_weight=0.5),
    _conduit("weight_75", image_weight=0.75),
    _conduit("weight_0_values_none", image_weight=0.0, value_mode="none"),
    _conduit("span_tail", query_span="tail"),
    _conduit("span_last_4", query_span="last_4"),
    _conduit("min_1_per_image", min_per_image=1),
    _conduit("conduit_paper", preset="paper"),
    Arm("impact", "impact"),
    Arm("impact_undamped", "impact", (("image_damping", 0.0),)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts per set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(DEFAULT_SETS))
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    reader = PageReader.load()
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    try:
        for kind in options.sets:
            table = sweep_set(reader, kind, options.prompts, ABLATIONS, RATIOS)
            table.check_ends()
            ratios |= table.shares(kind)
            figures[kind] = table.figures("conduit")
        settings = drawn_by() | described(ABLATIONS, RATIOS) | {"prompts_per_set": options.prompts}
        print(write_result(__file__, settings, ratios, figures))
    except NotMeasured as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
