"""Where commands print: for a person or, with `--json`, for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Where nobody looks, columns are as wide as they need to be.
_WIDE: Final = 1000


class Terminal:
    """Standard output as a command sees it."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._console = Console(
            width=None if sys.stdout.isatty() else _WIDE, markup=False, emoji=False, highlight=False
        )

    def document(self, value: object) -> None:
        """One JSON document on one line, where JSON is asked for."""
        if self.as_json:
            print(json.dumps(value, ensure_ascii=False), flush=True)

    def line(self, text: str = "") -> None:
        """A line for a person."""
        if not self.as_json:
            print(text, flush=True)

    def piece(self, text: str) -> None:
        """Text of an answer that is being written."""
        if not self.as_json:
            print(text, end="", flush=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns under a header; without one where `header` is empty."""
        if self.as_json:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(header))
        for name in header or (rows[0] if rows else ()):
            table.add_column(Text(name), no_wrap=not sys.stdout.isatty())
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table)

    def rich(self, text: Text) -> None:
        """Coloured text for a person."""
        if not self.as_json:
            self._console.print(text, soft_wrap=True)

    def failed(self, message: str, code: str) -> None:
        """Why the command failed, on standard error."""
        body: dict[str, Any] = {"error": {"message": message, "code": code}}
        print(json.dumps(body, ensure_ascii=False) if self.as_json else f"error: {message}", file=sys.stderr)
