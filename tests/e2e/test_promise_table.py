"""The table of promises in docs/architecture.md and the tests named after them are the same."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_promise_\w+)\(", file.read_text())
}
ROWS = re.findall(r"^\| (\d)\. .*\|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)


def test_every_promise_names_its_tests_and_they_exist() -> None:
    table = (ROOT / "docs/architecture.md").read_text()
    assert ROWS == ["1", "2", "3", "4", "5", "6", "7"]
    for row in re.findall(r"^\| \d\. .*\|$", table, re.MULTILINE):
        number, named = row[2], re.findall(r"`(test_promise_\w+)`", row)
        assert named
        assert all(name.startswith(f"test_promise_{number}_") for name in named)
        assert set(named) <= TESTS


def test_every_test_named_after_a_promise_is_in_the_table() -> None:
    named = set(re.findall(r"`(test_promise_\d\w+)`", (ROOT / "docs/architecture.md").read_text()))
    assert named == TESTS
