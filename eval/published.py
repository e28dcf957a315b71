"""The public sets on any served checkpoint, all policies: `python -m eval.published --model M --data FOLDER`.

The tables have the form of CONDUIT's Tables 1 and 2 (r = .10 and .05), the paper's figures beside ours. Sets that the
folder lacks are an error unless `--sets` leaves them out. Stopped, a run goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import NotMeasured, write_result
from engine.messages import ImagePart, Message, TextPart
from eval.answering import Answerer
from eval.arms import ARMS, cell, described
from eval.datasets.base import Dataset, Picture, Sample
from eval.datasets.known import DATASETS
from eval.recording import WORK, Recording
from eval.trial import Arm

RATIOS = (0.05, 0.10)
FULL, REUSE = Arm("full", "full"), Arm("reuse", "reuse")


def conversation(sample: Sample) -> tuple[list[Message], list[Picture]]:
    """One user message; pictures in the order of the parts."""
    pictures = [part for part in sample.parts if isinstance(part, Picture)]
    numbers = iter(range(len(pictures)))
    parts = [ImagePart(next(numbers)) if isinstance(p, Picture) else TextPart(p) for p in sample.parts]
    return [Message("user", tuple(parts))], pictures


class SetRun:
    """Answers one set under every arm and ratio."""

    def __init__(self, answerer: Answerer, dataset: Dataset, samples: Sequence[Sample]) -> None:
        self._answerer, self._dataset, self._samples = answerer, dataset, samples
        self._cells = [(FULL, 1.0), (REUSE, 0.0), *((arm, ratio) for arm in ARMS for ratio in RATIOS)]

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        messages, pictures = conversation(self._samples[number])
        pixels = [picture.pixels() for picture in pictures]
        tokens = self._dataset.max_tokens
        return {
            cell(arm.name, ratio): self._answerer.answer(messages, pixels, arm.make(number), ratio, tokens)
            for arm, ratio in self._cells
            if cell(arm.name, ratio) in missing
        }

    def columns(self) -> list[str]:
        return [cell(arm.name, ratio) for arm, ratio in self._cells]

    def summaries(self, rows: dict[int, dict[str, Any]]) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for arm, ratio in self._cells:
            name = cell(arm.name, ratio)
            answered = [(self._samples[number], row[name]) for number, row in rows.items()]
            found[name] = dict(self._dataset.summary(answered))
        return found


def run_set(
    answerer: Answerer, name: str, folder: Path, most: int | None, settings: dict[str, Any]
) -> dict[str, Any]:
    dataset = DATASETS[name].open(folder)
    samples = list(dataset.samples())[:most]
    run = SetRun(answerer, dataset, samples)
    recording = Recording(WORK / "published" / f"{name}.jsonl", settings | {"set": name})
    rows = recording.complete(range(len(samples)), run.columns(), run.row, name)
    return {"n": len(samples), "headline": dataset.headline, "cells": run.summaries(rows)}


def shares_of_full(tables: dict[str, dict[str, Any]]) -> dict[str, float]:
    """`<set>.<policy>.r<percent>`: the set's headline figure as a share of full prefill's."""
    found: dict[str, float] = {}
    for name, table in tables.items():
        headline = table["headline"]
        full = table["cells"][cell(FULL.name, 1.0)][headline]
        if full == 0:
            raise NotMeasured(f"{name}: full prefill scores nothing")
        found |= {f"{name}.{c}": round(figures[headline] / full, 4) for c, figures in table["cells"].items()}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with the sets, each in its published layout"
    )
    parser.add_argument("--sets", nargs="+", choices=sorted(DATASETS), default=sorted(DATASETS))
    parser.add_argument("--samples", type=int, help="only the first so many of each set")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    settings = {
        "model": options.model.name,
        "dtype": options.dtype,
        "samples": options.samples,
    }
    try:
        answerer = Answerer.load(options.model, getattr(torch, options.dtype), options.device)
        tables = {n: run_set(answerer, n, options.data, options.samples, settings) for n in options.sets}
        print(write_result(__file__, settings | described(ARMS, RATIOS), shares_of_full(tables), tables))
    except (NotMeasured, FileNotFoundError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
