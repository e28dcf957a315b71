"""What a lossy codec costs the shipped model: `python -m eval.codecs`.

The same prompts, policy (conduit) and budgets for every codec; entries are used as a hit would decode them. Writes
`results/codecs.json`; `ratios` are points of accuracy lost against `raw`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.result import write_result
from demo.questions import KINDS
from engine.passes.forward import Work
from engine.passes.refresh import Prefill
from engine.serving.heap import keep_large_blocks_apart
from engine.serving.load import weights_fingerprint
from eval.accuracy import CONDUIT, PROMPTS, SEED
from eval.arms import cell
from eval.forced import would_say
from eval.page_prompts import SHIPPED, PageReader, draw
from eval.recording import WORK, Recording
from eval.statistics import mean_interval, share_interval
from eval.status import exit_status
from store.codecs.protocol import codec_named

CODECS = ("raw", "int8", "int4")
RATIOS = (0.0, 0.10)
NAMES = tuple(cell(codec, ratio) for codec in CODECS for ratio in RATIOS)
COLUMNS = ("kind", *NAMES)


class Answers:
    """Prompt number i is of kind i modulo the number of kinds, as in `eval.accuracy`."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        reader, kind = self._reader, KINDS[number % len(KINDS)]
        (example,) = draw(kind, range(number, number + 1), SEED)
        prompt = reader.prompt(example, example.question.text)
        answer, layout = reader.answer_tokens(example.answer), prompt.layout
        kv = reader.pool.take(prompt.slots + len(answer))
        right: dict[str, Any] = {"kind": kind}
        try:
            for codec in CODECS:
                entries = [codec_named(codec).roundtrip(entry) for entry in prompt.entries]
                features = [entry.features for entry in entries]
                for ratio in RATIOS:
                    found = Prefill(reader.family, kv, layout, features, Work()).reuse(
                        entries, CONDUIT.make(number), ratio
                    )
                    says = would_say(
                        reader.family, kv, found.logits, layout.length, layout.next_position, answer
                    )
                    right[cell(codec, ratio)] = int(says)
        finally:
            reader.pool.give_back(kv)
        return right


def figures_of(rows: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Of every codec and budget: accuracy with its interval, and the paired difference to `raw` in points."""
    right = {name: np.asarray([row[name] for row in rows.values()], dtype=np.float64) for name in NAMES}
    found: dict[str, Any] = {"n": len(rows)}
    for codec in CODECS:
        for ratio in RATIOS:
            name, base = cell(codec, ratio), cell("raw", ratio)
            found[name] = {
                "accuracy": share_interval(right[name]).as_list(),
                "points_lost": mean_interval(100 * (right[base] - right[name])).as_list(),
            }
    return found


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    drawn = {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "codecs": list(CODECS)}
    answers = Answers(PageReader.load())
    recording = Recording(WORK / "codecs" / "answers.jsonl", drawn)
    figures = figures_of(recording.complete(range(options.prompts), COLUMNS, answers.row, "answers"))
    ratios = {f"{name}.points_lost": figures[name]["points_lost"][0] for name in NAMES}
    print(write_result(__file__, drawn | {"prompts": options.prompts}, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
