"""Every test runs on one torch thread: two threads on a busy small machine are several times slower than one. And
without the settings of whoever runs it."""

import os
from collections.abc import Generator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

for name in [name for name in os.environ if name.upper().startswith("CONDUIT_")]:
    del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged may hold names that are no UTF-8, which do not travel between processes."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report
