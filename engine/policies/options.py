"""Checks of option values. Whatever a request may have put there is an `UnknownPolicy` that says what is known."""

from __future__ import annotations

import math

from engine.errors import UnknownPolicy

# Of a published rule: with what holds for every policy of ours, or as the arm of CONDUIT's paper that bears its name.
VARIANTS = ("ours", "paper")


def one_of(policy: str, option: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        _refuse(policy, option, value, "known are " + ", ".join(known))


def number(policy: str, option: str, value: object, low: float, high: float) -> None:
    """A finite number between `low` and `high`; True and False are none."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and low <= value <= high):  # type: ignore[arg-type, operator]
        _refuse(policy, option, value, f"it must be a number between {low:g} and {high:g}")


def whole(policy: str, option: str, value: object, low: int, high: int) -> None:
    """A whole number between `low` and `high`; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _refuse(policy, option, value, f"it must be a whole number between {low} and {high}")


def text(policy: str, option: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        _refuse(policy, option, value, "it must be a text")


def whole_list(policy: str, option: str, value: object, words: tuple[str, ...]) -> tuple[int, ...] | None:
    """Ascending whole numbers written as "3,5,8"; None where `value` is one of `words` instead."""
    if isinstance(value, str) and value in words:
        return None
    parts = value.split(",") if isinstance(value, str) else []
    numbers = tuple(int(part) for part in parts if part.strip().isascii() and part.strip().isdigit())
    if not numbers or len(numbers) != len(parts) or list(numbers) != sorted(set(numbers)):
        _refuse(
            policy, option, value, "known are " + ", ".join(words) + ", or ascending layers such as 3,5,8"
        )
    return numbers


def counted(policy: str, option: str, value: object, words: tuple[str, ...], prefix: str) -> int | None:
    """The n of "<prefix>n" (n > 0); None where `value` is one of `words` instead."""
    if isinstance(value, str) and value in words:
        return None
    digits = value.removeprefix(prefix) if isinstance(value, str) and value.startswith(prefix) else ""
    if not (digits.isascii() and digits.isdigit() and 0 < len(digits) <= 6 and int(digits) > 0):
        _refuse(policy, option, value, "known are " + ", ".join(words) + f", or {prefix}<n>")
    return int(digits)


def _refuse(policy: str, option: str, value: object, allowed: str) -> None:
    raise UnknownPolicy(f"cache.options: {policy}.{option} is {str(value)[:80]!r}; {allowed}")
