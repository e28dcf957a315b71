"""The frame of an evaluation's `main`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from benchmarks.result import NotMeasured

Arguments = ParamSpec("Arguments")


def exit_status(
    *reasons: type[Exception],
) -> Callable[[Callable[Arguments, None]], Callable[Arguments, int]]:
    """Decorates a `main` that returns when it is done: status 0, or 1 and a line on stderr where `NotMeasured`, or one
    of `reasons`, says why nothing was measured."""
    told_of: tuple[type[Exception], ...] = (NotMeasured, *reasons)

    def decorate(main: Callable[Arguments, None]) -> Callable[Arguments, int]:
        @wraps(main)
        def told(*arguments: Arguments.args, **named: Arguments.kwargs) -> int:
            try:
                main(*arguments, **named)
            except told_of as error:
                print(f"not measured: {error}", file=sys.stderr)
                return 1
            return 0

        return told

    return decorate
