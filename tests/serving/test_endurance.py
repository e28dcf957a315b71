"""Half a minute of what `python -m tests.serving.endurance` does for an hour by hand."""

from __future__ import annotations

import pytest

from tests.serving.endurance import run

pytestmark = pytest.mark.slow


def test_mixed_load_with_faults_loses_no_request_and_changes_no_answer() -> None:
    seen = run(minutes=0.5, seed=3)
    assert seen.failures == []
    happened = {name.split(":")[0] for name in seen.counts}
    assert {"right", "left in mid-stream", "rubbish", "operator", "fault"} <= happened
