"""Every promise in docs/architecture.md and docs/security.md names the tests that hold it, and these exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", file.read_text())
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


def test_every_promise_of_security_names_its_tests_and_they_exist() -> None:
    page = (ROOT / "docs/security.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.split("|")[2])
        assert named, row
        for name in named:
            assert any(test == name or (name.endswith("_") and test.startswith(name)) for test in TESTS), name
