"""`impact` against `conduit` on many more prompts, where fewer cannot tell them apart: `python -m eval.duel`.

A new default must be shown to lose nowhere more than half a point. Where both rules are nearly always right the
interval of a thousand prompts is wider than that, so the sets that `eval.shifted_prefix` leaves in doubt are run here
with these two rules alone. Shares prompts and rows with it. Writes `results/duel.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from benchmarks.result import NotMeasured
from engine.heap import keep_large_blocks_apart
from eval.arms import ARMS, RATIOS
from eval.page_prompts import PageReader
from eval.shifted_prefix import SETS, sweep_set, written

PROMPTS = 4000
IN_DOUBT = ("reordered",)
RIVALS = tuple(arm for arm in ARMS if arm.name in ("conduit", "impact"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts per set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(IN_DOUBT))
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    reader = PageReader.load()
    try:
        tables = {kind: sweep_set(reader, kind, options.prompts, RIVALS, RATIOS) for kind in options.sets}
        print(written(__file__, tables, RIVALS, RATIOS))
    except NotMeasured as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
