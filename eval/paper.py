"""Figures that CONDUIT's paper prints (arXiv 2609.05821), to stand beside ours."""

from __future__ import annotations

from typing import Final

# Table 1: averages over LongDocURL, MMLongBench-Doc, SlideVQA, InfoSeek and ViQuAE. Baselines of the two larger
# backbones are at r = .05.
FIVE_SETS: Final = (
    ("Qwen2.5-VL-3B", "49.60", "42.31", "44.80", "42.69", "42.55", "47.56", "49.33"),
    ("Qwen2.5-VL-7B", "60.53", "51.02", "54.31", "51.03", "50.86", "-", "58.70"),
    ("InternVL3-9B", "56.96", "49.44", "51.08", "49.79", "49.35", "-", "55.97"),
)
# Table 4: Qwen2.5-VL-3B, r = .10, by image weight.
LAMBDA_SWEEP: Final = {0.0: 48.53, 0.25: 48.84, 0.5: 49.30, 0.75: 49.23, 1.0: 49.33}
# Table 5: r = .10.
ABLATION_ROWS: Final = (
    ("Qwen2.5-VL-3B", "49.33", "48.53", "48.44"),
    ("Qwen2.5-VL-7B", "58.70", "58.23", "57.35"),
    ("InternVL3-9B", "55.97", "55.43", "55.44"),
)
# Table 11: E(random) / E(attention), Qwen2.5-VL-3B, layer 24, 16 prompts.
RESIDUAL_ROWS: Final = (("attention, layer 24 of 36", "5.4", "11.6", "35.7", "94", "530"),)
