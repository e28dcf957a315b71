"""Figures that CONDUIT's paper prints (arXiv 2609.05821), to stand beside ours.

At hand are the parts of its tables that a public page shows, without some of their last rows: CONDUIT's own row of
Table 1 is known set by set for one backbone (it is Table 4 at image weight 1) and as an average for the others (Table
5), and the single-image table (Table 2) ends with the first row of the second backbone. What is missing is
`NOT_AT_HAND`.
Deviations are the paper's, over five seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOT_AT_HAND: Final = "not at hand"
MULTI_IMAGE: Final = ("longdocurl", "mmlongdoc", "slidevqa", "infoseek", "viquae")
SINGLE_IMAGE: Final = ("mmbench", "ocrbench", "pope", "mmstar")

Row = tuple[float, ...]
# Tables 1 and 6 to 8 by backbone and cell, in our names of the cells: the sets of `MULTI_IMAGE` and their average.
# CONDUIT as released is our preset `conduit_paper`; that its MPIC arm is `mpic_flat` follows from the paper's FLOPs.
BY_SET: Final[Mapping[str, Mapping[str, Row]]] = {
    "Qwen2.5-VL-3B": {
        "full.r100": (56.39, 34.19, 70.46, 44.36, 42.58, 49.60),
        "reuse.r0": (47.93, 31.80, 64.59, 32.34, 34.88, 42.31),
        "mpic_flat.r5": (47.87, 31.66, 64.49, 40.29, 36.78, 44.22),
        "cacheblend.r5": (47.61, 31.83, 64.74, 32.42, 36.30, 42.58),
        "kvshare.r5": (47.44, 31.89, 64.64, 32.35, 36.05, 42.47),
        "mpic_flat.r10": (48.16, 31.35, 64.31, 42.16, 38.00, 44.80),
        "cacheblend.r10": (48.02, 31.18, 64.26, 32.60, 37.38, 42.69),
        "kvshare.r10": (48.10, 31.51, 64.43, 32.36, 36.33, 42.55),
        "prophetkv.r10": (54.35, 32.25, 68.52, 42.30, 40.36, 47.56),
        "conduit_paper.r10": (56.00, 34.40, 70.88, 43.39, 42.00, 49.33),
    },
    "Qwen2.5-VL-7B": {
        "full.r100": (65.40, 53.43, 73.70, 54.54, 55.58, 60.53),
        "reuse.r0": (56.59, 51.48, 68.83, 32.46, 45.76, 51.02),
        "mpic_flat.r5": (55.81, 51.81, 68.46, 46.39, 49.06, 54.31),
        "cacheblend.r5": (55.87, 51.86, 68.85, 32.68, 45.87, 51.03),
        "kvshare.r5": (56.08, 51.42, 68.23, 32.81, 45.76, 50.86),
    },
    "InternVL3-9B": {
        "full.r100": (57.37, 43.28, 72.89, 51.11, 60.17, 56.96),
        "reuse.r0": (48.01, 41.02, 65.01, 38.09, 55.06, 49.44),
        "mpic_flat.r5": (47.62, 41.77, 67.03, 42.70, 56.28, 51.08),
        "cacheblend.r5": (48.27, 42.35, 66.34, 39.88, 52.12, 49.79),
        "kvshare.r5": (48.67, 40.50, 64.22, 38.41, 54.97, 49.35),
    },
}
# The smallest and the largest deviation over seeds of a cell of those tables, percentage points.
SEED_DEVIATION: Final = (0.35, 0.45)
# Table 5, which has CONDUIT's average for every backbone.
CONDUIT_R10: Final = {"Qwen2.5-VL-3B": 49.33, "Qwen2.5-VL-7B": 58.70, "InternVL3-9B": 55.97}
# Averages by backbone and cell.
FIVE_SETS: Final[Mapping[str, Mapping[str, float]]] = {
    backbone: {cell: row[-1] for cell, row in cells.items()} | {"conduit_paper.r10": CONDUIT_R10[backbone]}
    for backbone, cells in BY_SET.items()
}
# Table 2: one image, the sets of `SINGLE_IMAGE` and their average.
ONE_IMAGE: Final[Mapping[str, Mapping[str, Row]]] = {
    "Qwen2.5-VL-3B": {
        "full.r100": (75.1, 82.8, 87.5, 54.1, 74.9),
        "reuse.r0": (74.7, 82.4, 87.9, 53.4, 74.6),
        "conduit_paper.r5": (74.9, 82.7, 87.8, 54.4, 75.0),
    },
    "Qwen2.5-VL-7B": {"full.r100": (78.3, 88.4, 87.7, 60.9, 78.8)},
}
# Table 3: score, TFLOPs of the prefill, seconds to the first token and speed-up on the latency subset, means over three
# backbones and three contexts, r = .10. CONDUIT's row is not at hand but for two figures of the abstract.
SERVING: Final[Mapping[str, Row]] = {
    "full": (43.59, 90.36, 0.519, 1.00),
    "reuse": (41.41, 2.47, 0.049, 10.69),
    "cacheblend": (41.82, 11.36, 0.180, 2.89),
    "mpic_flat": (41.78, 9.97, 0.090, 5.76),
    "kvshare": (41.19, 11.02, 0.284, 1.83),
    "prophetkv": (42.06, 12.13, 0.169, 3.07),
}
CONDUIT_FLOPS_SHARE, CONDUIT_SPEEDUP = 0.135, 2.99
# Table 9: seconds to the first token at 4k, 8k and 16k tokens of context.
CONTEXTS: Final = ("4k", "8k", "16k")
TTFT: Final[Mapping[str, Mapping[str, Row]]] = {
    "Qwen2.5-VL-3B": {
        "full": (0.145, 0.333, 0.780),
        "reuse": (0.040, 0.042, 0.052),
        "cacheblend": (0.092, 0.137, 0.273),
        "mpic_flat": (0.037, 0.054, 0.096),
        "kvshare": (0.116, 0.184, 0.421),
    },
    "Qwen2.5-VL-7B": {
        "full": (0.260, 0.642, 1.380),
        "reuse": (0.031, 0.035, 0.054),
        "cacheblend": (0.095, 0.161, 0.349),
        "mpic_flat": (0.049, 0.084, 0.184),
        "kvshare": (0.124, 0.317, 0.653),
    },
    "InternVL3-9B": {
        "full": (0.182, 0.327, 0.624),
        "reuse": (0.052, 0.057, 0.074),
        "cacheblend": (0.113, 0.149, 0.250),
        "mpic_flat": (0.071, 0.096, 0.140),
        "kvshare": (0.128, 0.189, 0.427),
    },
}
# Table 4: Qwen2.5-VL-3B, r = .10, by image weight: the sets of `MULTI_IMAGE` and their average.
LAMBDA_BY_SET: Final[Mapping[float, Row]] = {
    0.0: (55.28, 33.73, 69.79, 42.85, 41.02, 48.53),
    0.25: (55.29, 34.06, 70.29, 43.30, 41.27, 48.84),
    0.5: (55.92, 34.38, 70.97, 43.30, 41.91, 49.30),
    0.75: (55.83, 34.37, 70.59, 43.44, 41.91, 49.23),
    1.0: (56.00, 34.40, 70.88, 43.39, 42.00, 49.33),
}
LAMBDA_SWEEP: Final = {weight: row[-1] for weight, row in LAMBDA_BY_SET.items()}
# Table 5: r = .10. CONDUIT, without the image coefficient, without values.
ABLATION_ROWS: Final = {
    "Qwen2.5-VL-3B": (49.33, 48.53, 48.44),
    "Qwen2.5-VL-7B": (58.70, 58.23, 57.35),
    "InternVL3-9B": (55.97, 55.43, 55.44),
}
# Table 11: E(random) / E(rule), Qwen2.5-VL-3B, layer 24 of 36, 16 prompts, r = .05 .10 .20 .30 .50.
RESIDUAL: Final[Mapping[str, Row]] = {
    "attention": (5.44, 11.55, 35.68, 94.35, 530.13),
    "value norms alone": (1.01, 1.05, 1.06, 1.12, 1.12),
    "attention x value norms": (5.38, 11.46, 35.46, 94.09, 535.96),
}
# The same table: E(value norms alone) / E(rule).
RESIDUAL_OVER_VALUES: Final[Mapping[str, Row]] = {
    "attention": (5.40, 10.96, 33.75, 83.97, 471.39),
    "attention x value norms": (5.34, 10.87, 33.53, 83.74, 476.57),
}
# Table 14: by quartile of the attention gap, near ties first, on the evidence-annotated part of MMLongBench-Doc
# (Qwen2.5-VL-3B, r = .10): accuracy of CONDUIT and of full prefill, and the share of the budget that CONDUIT and raw
# attention spend on the evidence pages, all in %.
GAP_QUARTILES: Final[Mapping[str, Row]] = {
    "Q1 (near tie)": (46.2, 46.7, 26.1, 28.5),
    "Q2": (36.5, 39.9, 36.1, 34.4),
    "Q3": (42.5, 43.3, 49.7, 43.7),
    "Q4": (30.3, 32.9, 76.9, 69.1),
}


def beside(backbone: str, name: str) -> str:
    """The paper's five-set average of a cell."""
    found = FIVE_SETS[backbone].get(name)
    return NOT_AT_HAND if found is None else f"{found:.2f}"
