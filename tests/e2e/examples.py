"""Mixed requests: every kind of question, one to four pages, several ways to use the store."""

from __future__ import annotations

from typing import Any

import numpy as np

from demo.questions import KINDS, SEVERAL_PAGES, Example, make_example

WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"policy": "conduit", "refresh_ratio": 0.05},
    {"policy": "conduit", "refresh_ratio": 0.5, "options": {"preset": "paper"}},
    {"policy": "reuse"},
    {"policy": "conduit", "refresh_ratio": 1.0},
)


def mixed(count: int, seed: int = 0) -> list[tuple[Example, dict[str, Any]]]:
    """`count` examples, each with the cache options to ask it with. Equal seeds give equal requests."""
    rng = np.random.default_rng(seed)
    requests = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        pages = int(rng.integers(2 if kind in SEVERAL_PAGES else 1, 5))
        requests.append((make_example(rng, kind, pages), WAYS[number % len(WAYS)]))
    return requests
