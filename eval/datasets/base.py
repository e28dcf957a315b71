"""What a data set is to an evaluation: questions about pictures, read from a folder, and the set's own score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps


@dataclass(frozen=True, slots=True)
class Picture:
    """Where the pixels are: a file, or the bytes of one."""

    source: Path | bytes

    def pixels(self) -> np.ndarray:
        """Upright RGB uint8 [height, width, 3]."""
        import io

        file = self.source if isinstance(self.source, Path) else io.BytesIO(self.source)
        with Image.open(file) as opened:
            return np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One question: `parts` are the user's message, text and pictures in order, `truth` is what the score needs."""

    id: str
    parts: tuple[str | Picture, ...]
    truth: Mapping[str, Any]


Score = Mapping[str, float]


class Dataset(Protocol):
    """`score` is between 0 and 1 for one answer. `summary` gives the set's published figures; the one under `headline`
    is what papers quote."""

    name: str
    headline: str
    max_tokens: int

    def samples(self) -> Iterator[Sample]: ...

    def score(self, sample: Sample, output: str) -> float: ...

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """How to open a set: `open(folder)`. `layout` says in words what the folder must hold, `source` where that and the
    score are defined."""

    open: Callable[[Path], Dataset]
    layout: str
    source: str
    images: str = "several"


DATASETS: dict[str, Reader] = {}


def mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no answers to average")
    return float(np.mean(values))
