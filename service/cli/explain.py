"""The refresh of a request as a picture of signs: `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from service.cli.chat import ask
from service.cli.client import Service
from service.cli.options import Images, Policy, Ratio, image_url
from service.cli.report import report_line
from service.cli.terminal import Terminal


class Layer(StrEnum):
    """What is drawn of each token."""

    states = "states"
    scores = "scores"
    drift = "drift"


# Reused, compiled, refreshed, exact, chained.
STATES: Final = (".", "+", "#", "=", "-")
_NAMES: Final = ("reused", "compiled", "refreshed", "exact", "chained")
_STYLES: Final = ("green", "blue", "bold yellow", "cyan", "magenta")
_RAMP: Final = " .:-=+*%#@"
_LINE: Final = 64


def explain(
    service: Service,
    terminal: Terminal,
    question: Annotated[list[str], typer.Argument()],
    image: Images,
    layer: Annotated[Layer, typer.Option(help="What is drawn.")] = Layer.states,
    policy: Policy = None,
    refresh_ratio: Ratio = None,
) -> None:
    """Ask about images, and show where the KV of each visual token is from."""
    content = [{"type": "image_url", "image_url": {"url": image_url(one)}} for one in image]
    turn = {"role": "user", "content": [*content, {"type": "text", "text": " ".join(question)}]}
    cache = {"policy": policy, "refresh_ratio": refresh_ratio, "explain": True}
    answer = ask(service, terminal, {"messages": [turn], "cache": cache})
    report = answer.end["kv_report"]
    terminal.document(report)
    terminal.line(report_line(report, answer.first))
    for number, one in enumerate(report["images"], start=1):
        terminal.line(f"image {number}: {one['refreshed']} of {one['tokens']} refreshed")
        for row in drawn(one["explained"], layer):
            terminal.rich(row)
    if layer is Layer.states:
        terminal.line(", ".join(f"{sign} {name}" for sign, name in zip(STATES, _NAMES, strict=True)))


def drawn(told: dict[str, Any], layer: Layer) -> list[Text]:
    """A line for every row of the image's tokens, two signs a token."""
    values: Sequence[float | None] | None = told[layer]
    if values is None:
        return [Text(f"  no {layer} of this image")]
    if layer is Layer.states:
        cells = [(STATES[int(value or 0)], _STYLES[int(value or 0)]) for value in values]
    else:
        most = max((value for value in values if value is not None), default=0.0) or 1.0
        cells = [(_sign(value, most), "") for value in values]
    columns = told["grid"][1] if told["grid"] else _LINE
    rows = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    return [
        Text("  ").append_text(Text.assemble(*((sign * 2, style) for sign, style in row))) for row in rows
    ]


def _sign(value: float | None, most: float) -> str:
    if value is None:
        return " "
    return _RAMP[min(len(_RAMP) - 1, int(max(0.0, value) / most * len(_RAMP)))]
