"""The second judge: SmolLM2 on text chunks, all policies: `python -m eval.smollm2_judge` (extra `eval`).

KL to full prefill and top-1 agreement of the first answer token; six chunks; one recording per compile prefix. Writes
`results/smollm2_judge.json`; `ratios` are mean KL as a share of plain reuse's (lower is better), by prefix.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import write_result
from engine.serving.heap import keep_large_blocks_apart
from eval.arms import ARMS, described
from eval.passages import draw_asked
from eval.recording import WORK, Recording
from eval.smollm2 import PREFIXES, ChunkReader
from eval.status import exit_status
from eval.sweep import Draw, Sweep, Table, columns
from eval.trial import Prompt

RATIOS = (0.05, 0.10, 0.20)
SEED = 2028
PROMPTS = 300


def chunk_questions(reader: ChunkReader) -> Draw:
    """Questions about chunks. The foreign question of prompt i is that of prompt i + 1."""

    def asked(number: int) -> tuple[Prompt, int]:
        own = draw_asked(number, SEED)
        return reader.prompt(own, draw_asked(number + 1, SEED)), reader.first_token(own.answer)

    return asked


@exit_status(FileNotFoundError)
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--prefixes", nargs="+", choices=PREFIXES, default=["template"])
    parser.add_argument(
        "--cache", type=Path, default=WORK / "smollm2", help="where the unpacked weights are kept"
    )
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for prefix in options.prefixes:
        reader = ChunkReader.load(prefix, options.cache)
        sweep = Sweep(reader.family, reader.pool, chunk_questions(reader), ARMS, RATIOS)
        recording = Recording(WORK / "smollm2_judge" / f"{prefix}.jsonl", {"seed": SEED, "prefix": prefix})
        rows = recording.complete(range(options.prompts), columns(ARMS, RATIOS), sweep.row, prefix)
        table = Table.of(rows)
        table.check_ends()
        ratios |= table.kl_ratios(f"smollm2_{prefix}")
        figures[prefix] = table.figures("conduit")
    settings = {"seed": SEED, "prompts": options.prompts, "chunks": 6} | described(ARMS, RATIOS)
    print(write_result(__file__, settings, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
