"""How an evaluation ends."""

from __future__ import annotations

import pytest

from benchmarks.result import NotMeasured
from eval.status import exit_status


def test_what_is_missing_is_told_and_a_fault_is_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    @exit_status(FileNotFoundError)
    def main(error: Exception | None) -> None:
        if error is not None:
            raise error

    assert main(None) == 0
    assert main(NotMeasured("no prompt")) == main(FileNotFoundError("no weights")) == 1
    assert capsys.readouterr().err == "not measured: no prompt\nnot measured: no weights\n"
    with pytest.raises(ValueError):
        main(ValueError("a fault"))
    with pytest.raises(FileNotFoundError):
        exit_status()(main.__wrapped__)(FileNotFoundError("not expected"))  # type: ignore[attr-defined]
