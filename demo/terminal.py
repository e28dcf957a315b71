"""What the demo prints: compact, aligned, with plain ANSI styles where a person looks at it."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

LABEL = 10
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


class Terminal:
    """Writes to `stream`; styles only on a terminal, and not where NO_COLOR asks for none."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._out = stream or sys.stdout
        self._styled = self._out.isatty() and not os.environ.get("NO_COLOR")

    def style(self, text: str, *names: str) -> str:
        if not self._styled or not text:
            return text
        return f"\x1b[{';'.join(STYLES[name] for name in names)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        print(text, file=self._out, flush=True)

    def title(self, text: str) -> None:
        self.line()
        self.line(self.style(text, "bold", "cyan"))

    def paragraph(self, text: str) -> None:
        for line in textwrap.wrap(text, 100):
            self.line(line)

    def field(self, label: str, text: str) -> None:
        self.line(self._labelled(label) + text)

    def open_field(self, label: str) -> None:
        """Begin a field whose text follows in pieces; `line` ends it."""
        self.piece(self._labelled(label))

    def piece(self, text: str) -> None:
        print(text, end="", file=self._out, flush=True)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """The first column to the left, the others to the right."""
        every = [list(head), *(list(row) for row in rows)]
        widths = [max(len(row[i]) for row in every) for i in range(len(head))]
        for number, row in enumerate(every):
            cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            text = "  " + "   ".join(cells).rstrip()
            self.line(self.style(text, "dim") if number == 0 else text)

    def _labelled(self, label: str) -> str:
        return "   " + self.style(f"{label:<{LABEL}}", "dim")
