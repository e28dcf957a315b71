"""Figures that CONDUIT's paper prints (arXiv 2609.05821), to stand beside ours.

At hand are the averages over its five multi-image sets (Table 1), its ablations (Tables 4 and 5) and a row of its Table
11, as they were noted from the paper. Its figures set by set and those of the single-image sets (Table 2) are not: the
paper's text was not to be had here, and the released code (github.com/cpa2001/CONDUIT) holds none. Where the report
would show one of these it says `NOT_AT_HAND`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOT_AT_HAND: Final = "not at hand"
MULTI_IMAGE: Final = ("longdocurl", "mmlongdoc", "slidevqa", "infoseek", "viquae")
SINGLE_IMAGE: Final = ("mmbench", "ocrbench", "pope", "mmstar")

# Table 1: averages over `MULTI_IMAGE` by backbone and cell, in our names of the cells. CONDUIT as released is our
# preset `conduit_paper`; that its MPIC arm is `mpic_flat` follows from the paper's FLOPs. Baselines of the two larger
# backbones are at r = .05.
FIVE_SETS: Final[Mapping[str, Mapping[str, float]]] = {
    "Qwen2.5-VL-3B": {
        "full.r100": 49.60,
        "reuse.r0": 42.31,
        "mpic_flat.r10": 44.80,
        "cacheblend.r10": 42.69,
        "kvshare.r10": 42.55,
        "prophetkv.r10": 47.56,
        "conduit_paper.r10": 49.33,
    },
    "Qwen2.5-VL-7B": {
        "full.r100": 60.53,
        "reuse.r0": 51.02,
        "mpic_flat.r5": 54.31,
        "cacheblend.r5": 51.03,
        "kvshare.r5": 50.86,
        "conduit_paper.r10": 58.70,
    },
    "InternVL3-9B": {
        "full.r100": 56.96,
        "reuse.r0": 49.44,
        "mpic_flat.r5": 51.08,
        "cacheblend.r5": 49.79,
        "kvshare.r5": 49.35,
        "conduit_paper.r10": 55.97,
    },
}
# Table 4: Qwen2.5-VL-3B, r = .10, by image weight.
LAMBDA_SWEEP: Final = {0.0: 48.53, 0.25: 48.84, 0.5: 49.30, 0.75: 49.23, 1.0: 49.33}
# Table 5: r = .10. CONDUIT, without the image coefficient, without values.
ABLATION_ROWS: Final = {
    "Qwen2.5-VL-3B": (49.33, 48.53, 48.44),
    "Qwen2.5-VL-7B": (58.70, 58.23, 57.35),
    "InternVL3-9B": (55.97, 55.43, 55.44),
}
# Table 11: E(random) / E(attention), Qwen2.5-VL-3B, layer 24, 16 prompts.
RESIDUAL_ROWS: Final = (("attention, layer 24 of 36", "5.4", "11.6", "35.7", "94", "530"),)
# The same table: E(random) / E(value norms alone).
VALUES_ALONE: Final = (1.0, 1.1)


def beside(backbone: str, name: str) -> str:
    """The paper's five-set average of a cell."""
    found = FIVE_SETS[backbone].get(name)
    return NOT_AT_HAND if found is None else f"{found:.2f}"
