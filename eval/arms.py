"""The policies that are compared, under the names that results and plots say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.trial import Arm

RATIOS = (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)
# Where the question does not choose, one visual token in a hundred is as good as none; the paper starts at two.
NOT_TINY = RATIOS[1:]
ARMS = (
    Arm("random", "random", (), NOT_TINY),
    Arm("wrong_query", "wrong_query", (), NOT_TINY),
    Arm("conduit", "conduit"),
    Arm("conduit_paper", "conduit", (("preset", "paper"),), NOT_TINY),
    Arm("conduit_no_image", "conduit", (("image_weight", 0.0),)),
    Arm("impact", "impact"),
    Arm("prophetkv", "prophetkv"),
    Arm("first_k", "first_k", (), NOT_TINY),
    # On images of one size the same choice as `first_k`.
    Arm("vlcache", "vlcache", (), NOT_TINY),
    Arm("mpic_flat", "mpic_flat", (), NOT_TINY),
    Arm("cacheblend", "cacheblend", (), NOT_TINY),
    Arm("cacheblend_original", "cacheblend", (("variant", "original"),), NOT_TINY),
    Arm("kvshare", "kvshare", (), NOT_TINY),
)
# The ends, which are the same for every policy.
REUSE = Arm("reuse", "reuse")
EVERYTHING = Arm("everything", "conduit")


def described(arms: Sequence[Arm], ratios: Sequence[float]) -> dict[str, Any]:
    """Arms and ratios as a result file tells them."""
    return {"ratios": list(ratios), "arms": {arm.name: [arm.policy, dict(arm.options)] for arm in arms}}


def cell(arm: str, ratio: float) -> str:
    """Name of one arm at one ratio: `conduit.r10`; two and a half percent are `r2.5`."""
    return f"{arm}.r{100 * ratio:g}"
