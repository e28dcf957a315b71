"""Text of an answer -> what may be shown of it: text up to a stop string, and tool calls."""

from __future__ import annotations

from collections.abc import Sequence

from engine.answer.stops import StopStrings
from engine.calls.format import CallReader, Piece


class Outlet:
    """Stop strings end the text of an answer; a call is none of it, whatever its arguments say."""

    def __init__(self, stops: Sequence[str], reader: CallReader | None = None) -> None:
        """`reader` finds calls, where there may be any."""
        self._stops, self._reader = StopStrings(stops), reader

    @property
    def stop(self) -> str | None:
        """The stop string that was found; nothing comes any more."""
        return self._stops.found

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    @property
    def calls(self) -> int:
        """Calls that are whole."""
        return 0 if self._reader is None or self.stopped else self._reader.whole_calls

    def add(self, text: str, stopping: bool = True) -> list[Piece]:
        """What has become final. Text that is not `stopping` is no stop string, whatever it says, nor begins one."""
        pieces = [text] if self._reader is None else self._reader.add(text)
        return self._stopping(pieces) if stopping else _said(pieces)

    def flush(self) -> list[Piece]:
        """The answer has ended: what was held back after all."""
        last = self._stopping([] if self._reader is None else self._reader.flush())
        return _said([*last, "" if self.stopped else self._stops.flush()])

    def _stopping(self, pieces: Sequence[Piece]) -> list[Piece]:
        shown: list[Piece] = []
        for piece in pieces:
            if self.stopped:
                break
            if isinstance(piece, str):
                shown.append(self._stops.add(piece))
            else:
                shown += [self._stops.flush(), piece]
        return _said(shown)


def _said(pieces: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece]
