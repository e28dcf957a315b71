"""Text that comes in pieces."""

from __future__ import annotations


def overlap(text: str, other: str) -> int:
    """Length of the longest proper prefix of `other` that `text` ends with."""
    return next((n for n in range(min(len(text), len(other) - 1), 0, -1) if text.endswith(other[:n])), 0)
