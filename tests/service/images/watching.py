"""What a loader tells of its work, in lists."""

from __future__ import annotations


class Watching:
    def __init__(self) -> None:
        self.fetched = 0
        self.decoded = 0
        self.not_modified = 0
        self.failed: list[str] = []

    def image_fetched(self, seconds: float) -> None:
        self.fetched += 1

    def image_not_modified(self) -> None:
        self.not_modified += 1

    def image_decoded(self, seconds: float) -> None:
        self.decoded += 1

    def image_failed(self, code: str) -> None:
        self.failed.append(code)
