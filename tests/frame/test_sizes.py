"""A person should hold a module in mind: functions stay short, and no file is a drawer for everything."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "engine", "store", "demo", "benchmarks", "eval", "training", "examples")
PRODUCT = ("service", "engine", "store", "eval")
LONGEST, MEDIAN = 50, 8
LINES, LINES_OF_TESTS = 300, 400
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


def test_functions_are_short() -> None:
    lengths = functions()
    assert {place: lines for place, lines in lengths.items() if lines > LONGEST} == {}
    assert median(lines for place, lines in lengths.items() if place.startswith(PRODUCT)) <= MEDIAN


def test_files_are_short() -> None:
    product = [file for file in files() if file.relative_to(ROOT).parts[0] in PRODUCT]
    assert longer_than(LINES, product) == set()
    assert longer_than(LINES_OF_TESTS, (ROOT / "tests").rglob("*.py")) == set()


def longer_than(lines: int, paths: Iterable[Path]) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in paths if len(path.read_text().splitlines()) > lines}


def test_no_file_is_called_after_nothing_in_particular() -> None:
    assert [file for file in files() if set(file.stem.split("_")) & DRAWERS] == []


def test_the_face_of_a_room_says_what_lives_there_and_nothing_else() -> None:
    for file in files():
        if file.name == "__init__.py":
            *docstring, rest = ast.parse(file.read_text()).body or [None]
            assert docstring == [] and (rest is None or isinstance(rest, ast.Expr)), file
            assert len(file.read_text().splitlines()) <= 2, file
