"""The second judge on longer chunks, for corrections: `python -m eval.long_chunks` (extra `eval`).

SmolLM2 on four chunks of about 60 tokens, three passages each (`eval.passages`), so that ten percent are five or six
tokens a chunk: with the two or three of a single passage there is little to tell the others by. Writes
`results/long_chunks.json`; `ratios` are mean KL as a share of plain reuse's (lower is better).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.result import write_result
from engine.serving.heap import keep_large_blocks_apart
from eval.arms import cell, described
from eval.passages import Asked, draw_asked
from eval.recording import WORK, Recording
from eval.smollm2 import ChunkReader
from eval.status import exit_status
from eval.sweep import Draw, Sweep, Table, columns
from eval.trial import Arm, Prompt

SHIFT, RIDGE = (("correction", "shift"),), (("correction", "ridge"),)
ARMS = (
    Arm("conduit", "conduit"),
    Arm("conduit_ridge", "conduit", RIDGE),
    Arm("impact", "impact"),
    Arm("impact_shift", "impact", SHIFT),
    Arm("impact_ridge", "impact", RIDGE),
)
# What each corrected arm is compared with, prompt by prompt.
PLAIN = {"conduit_ridge": "conduit", "impact_shift": "impact", "impact_ridge": "impact"}
RATIOS = (0.10,)
CHUNKS, PASSAGES = 4, 3
SEED = 2052
PROMPTS = 300
# Portraits that only fill the prompt are drawn from numbers that no question has.
FILLING = 1_000_000


def long_asked(number: int) -> Asked:
    """Question `number` about six passages, with six of other people before or behind them, three to a chunk: chunks
    begin and end in the middle of a portrait."""
    own, other = draw_asked(number, SEED), draw_asked(FILLING + number, SEED)
    first, second = (own, other) if number % 2 else (other, own)
    passages = (*first.passages, *second.passages)
    chunks = [" ".join(passages[PASSAGES * i : PASSAGES * (i + 1)]) for i in range(CHUNKS)]
    return replace(own, passages=tuple(chunks))


def long_chunk_questions(reader: ChunkReader) -> Draw:
    """The foreign question of prompt i is that of prompt i + 1."""

    def asked(number: int) -> tuple[Prompt, int]:
        own = long_asked(number)
        return reader.prompt(own, long_asked(number + 1)), reader.first_token(own.answer)

    return asked


@exit_status(FileNotFoundError)
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument(
        "--cache", type=Path, default=WORK / "smollm2", help="where the unpacked weights are kept"
    )
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    reader = ChunkReader.load("template", options.cache)
    sweep = Sweep(reader.family, reader.pool, long_chunk_questions(reader), ARMS, RATIOS)
    recording = Recording(WORK / "long_chunks" / "template.jsonl", {"seed": SEED, "prefix": "template"})
    wanted = columns(ARMS, RATIOS)
    table = Table.of(recording.complete(range(options.prompts), wanted, sweep.row, "long chunks"))
    table.check_ends()
    figures = table.figures("conduit")
    for corrected, plain in PLAIN.items():
        difference = table.kl_difference(cell(corrected, RATIOS[0]), cell(plain, RATIOS[0]))
        figures[cell(corrected, RATIOS[0])] |= {"kl_minus_uncorrected": difference.as_list()}
    shares = table.kl_ratios("smollm2")
    ratios = {f"{name}.kl_vs_reuse": value for name, value in shares.items()}
    settings = {"seed": SEED, "prompts": options.prompts, "chunks": CHUNKS} | described(ARMS, RATIOS)
    print(write_result(__file__, settings, ratios, {"template": figures}))


if __name__ == "__main__":
    raise SystemExit(main())
