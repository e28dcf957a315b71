"""A person should hold a module in mind: functions stay short, and no file is a drawer for everything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "engine", "store", "demo", "benchmarks", "eval", "training", "examples")
LONGEST, USUAL, SHARE = 60, 35, 0.9
DRAWERS = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def functions() -> dict[str, int]:
    """Lines of every function by its place, decorators not counted."""
    found = {}
    for file in files():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                place = f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
                found[place] = (node.end_lineno or node.lineno) - node.lineno + 1
    return found


def test_no_function_is_longer_than_60_lines_and_most_are_under_35() -> None:
    lengths = functions()
    assert {place: lines for place, lines in lengths.items() if lines > LONGEST} == {}
    assert sum(lines <= USUAL for lines in lengths.values()) >= SHARE * len(lengths)


def test_no_file_is_called_after_nothing_in_particular() -> None:
    assert [file for file in files() if set(file.stem.split("_")) & DRAWERS] == []


def test_the_face_of_a_room_says_what_lives_there_and_nothing_else() -> None:
    for file in files():
        if file.name == "__init__.py":
            *docstring, rest = ast.parse(file.read_text()).body or [None]
            assert docstring == [] and (rest is None or isinstance(rest, ast.Expr)), file
            assert len(file.read_text().splitlines()) <= 2, file
