"""Styles are for people at a terminal; everything else gets plain text."""

from __future__ import annotations

import io

import pytest

from demo.terminal import Terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_no_escape_codes() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.title("Title")
    terminal.field("label", terminal.style("text", "green"))
    assert "\x1b" not in out.getvalue()
    assert "label" in out.getvalue()


def test_a_terminal_gets_styles_unless_it_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal(Screen()).style("text", "bold", "cyan") == "\x1b[1;36mtext\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal(Screen()).style("text", "bold") == "text"


def test_a_field_may_be_written_in_pieces() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.open_field("answer")
    for piece in ("four ", "is A"):
        terminal.piece(piece)
    terminal.line()
    terminal.field("answer", "four is A")
    first, second = out.getvalue().splitlines()
    assert first == second
