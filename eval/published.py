"""The public sets on any served checkpoint, all policies: `python -m eval.published --model M --data FOLDER`.

Writes `results/published.json`: every set's own figures under every arm at r = .05 and .10, its headline with a 95 %
interval. `eval.report` makes two tables of it, as CONDUIT's paper has them: the five multi-image sets with their
average, and the four single-image sets. Beside ours stand those of the paper's figures that are at hand, which are its
five-set averages (see `eval.paper`). Sets that the folder lacks are an error unless `--sets` leaves them out. Stopped,
a run goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.result import NotMeasured, write_result
from engine.messages import ImagePart, Message, TextPart
from eval.answering import Answerer
from eval.arms import ARMS, cell, described
from eval.datasets.base import Dataset, Picture, Sample
from eval.datasets.known import DATASETS
from eval.datasets.vlmevalkit import ROTATION, ChoiceSet
from eval.recording import WORK, Recording
from eval.status import exit_status
from eval.trial import Arm

RATIOS = (0.05, 0.10)
FULL, REUSE = Arm("full", "full"), Arm("reuse", "reuse")
# The jackknife's blocks of questions, and how many standard errors a 95 % interval has to either side.
BLOCKS = 50
ERRORS = 1.96


def conversation(sample: Sample) -> tuple[list[Message], list[Picture]]:
    """One user message; pictures in the order of the parts."""
    pictures = [part for part in sample.parts if isinstance(part, Picture)]
    numbers = iter(range(len(pictures)))
    parts = [ImagePart(next(numbers)) if isinstance(p, Picture) else TextPart(p) for p in sample.parts]
    return [Message("user", tuple(parts))], pictures


def question_of(dataset: Dataset, sample: Sample) -> str:
    """What the set counts as one question: the rotated copies of a multiple choice are one."""
    return str(int(sample.id) % ROTATION) if isinstance(dataset, ChoiceSet) else sample.id


def first_questions(dataset: Dataset, most: int | None) -> list[Sample]:
    """All samples of the first `most` questions."""
    samples = list(dataset.samples())
    questions = list(dict.fromkeys(question_of(dataset, sample) for sample in samples))
    kept = set(questions[:most])
    return [sample for sample in samples if question_of(dataset, sample) in kept]


def fingerprint(samples: Sequence[Sample]) -> str:
    """Of what is asked and shown. Pictures in files count by their names."""
    found = hashlib.sha256()
    for sample in samples:
        for part in (sample.id, *sample.parts):
            seen = part.source if isinstance(part, Picture) else part
            found.update(hashlib.sha256(seen if isinstance(seen, bytes) else str(seen).encode()).digest())
    return found.hexdigest()


def headline_interval(dataset: Dataset, answered: Sequence[tuple[Sample, str]]) -> list[float] | None:
    """[headline, low, high] by the jackknife, questions left out block by block. It asks nothing of a score but that it
    can be had of fewer questions: not every headline is a mean. None where there is only one question."""
    value = dataset.summary(answered)[dataset.headline]
    questions = list(dict.fromkeys(question_of(dataset, sample) for sample, _ in answered))
    blocks = min(BLOCKS, len(questions))
    if blocks < 2:
        return None
    block = {question: number % blocks for number, question in enumerate(questions)}
    without = np.array(
        [
            dataset.summary([pair for pair in answered if block[question_of(dataset, pair[0])] != left_out])[
                dataset.headline
            ]
            for left_out in range(blocks)
        ]
    )
    error = float(np.sqrt((blocks - 1) * without.var()))
    return [round(x, 4) for x in (value, value - ERRORS * error, value + ERRORS * error)]


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

    def figures(self, rows: dict[int, dict[str, Any]]) -> dict[str, Any]:
        answered = {
            name: [(self._samples[number], row[name]) for number, row in rows.items()]
            for name in self.columns()
        }
        questions = {question_of(self._dataset, sample) for sample in self._samples}
        return {
            "n": len(questions),
            "headline": self._dataset.headline,
            "cells": {name: dict(self._dataset.summary(pairs)) for name, pairs in answered.items()},
            "intervals": {name: headline_interval(self._dataset, pairs) for name, pairs in answered.items()},
        }


def run_set(
    answerer: Answerer, name: str, folder: Path, most: int | None, settings: dict[str, Any]
) -> dict[str, Any]:
    dataset = DATASETS[name].open(folder)
    samples = first_questions(dataset, most)
    run = SetRun(answerer, dataset, samples)
    asked = settings | {"set": name, "asked": fingerprint(samples)}
    # A file of its own for each model and each set of prompts: a recording throws away what was measured otherwise.
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    recording = Recording(WORK / "published" / f"{name}-{key}.jsonl", asked)
    return run.figures(recording.complete(range(len(samples)), run.columns(), run.row, name))


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


@exit_status(FileNotFoundError)
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with the sets, each in its published layout"
    )
    parser.add_argument("--sets", nargs="+", choices=sorted(DATASETS), default=sorted(DATASETS))
    parser.add_argument("--samples", type=int, help="only the first so many questions of each set")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    settings = {
        "model": options.model.name,
        "dtype": options.dtype,
        "samples": options.samples,
    }
    answerer = Answerer.load(options.model, getattr(torch, options.dtype), options.device)
    # Recordings stay here, so they may say where things lie; the result tells names only.
    keyed = settings | {"model": str(options.model.resolve())}
    tables = {n: run_set(answerer, n, options.data, options.samples, keyed) for n in options.sets}
    print(write_result(__file__, settings | described(ARMS, RATIOS), shares_of_full(tables), tables))


if __name__ == "__main__":
    raise SystemExit(main())
