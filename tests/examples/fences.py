"""The code blocks of a page of documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in ROOT.glob("**/*.md")
    if not any(part.startswith(".") or part in ("var", "results") for part in path.relative_to(ROOT).parts)
)
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Fence:
    """`number` counts the blocks of its page from 1; `language` is what stands behind the backticks."""

    page: str
    number: int
    language: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.number}"


def fences() -> list[Fence]:
    """All of them, page by page."""
    return [
        Fence(str(page.relative_to(ROOT)), number, language, code)
        for page in PAGES
        for number, (language, code) in enumerate(_FENCE.findall(page.read_text()), start=1)
    ]
