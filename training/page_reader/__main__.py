"""Train the page reader from scratch: `python -m training.page_reader`."""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch

from training.page_reader.batches import draw_batch
from training.page_reader.curriculum import Curriculum
from training.page_reader.files import write_files
from training.page_reader.network import Network
from training.page_reader.objective import Objective
from training.page_reader.prompts import Codec

_WARM_UP: Final = 150
_LOG_EVERY: Final = 25
_SAVE_SECONDS: Final = 120.0


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, constant to half time, then a cosine down to 1 % of the peak."""
    done = step / steps
    decay = 1.0 if done < 0.5 else max(0.01, 0.5 * (1 + math.cos(math.pi * (2 * done - 1))))
    return peak * min(1.0, (step + 1) / _WARM_UP) * decay


def build_optimizer(network: Network, objective: Objective) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    parameters = [*network.model.parameters(), *objective.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98), fused=True)


def train(folder: Path, steps: int, peak: float, seed: int) -> None:
    """Run the whole curriculum and leave the model in `folder`, with log.jsonl beside it."""
    write_files(folder)
    rng = np.random.default_rng(seed)
    network = Network(seed)
    codec = Codec(network.tokenizer)
    objective = Objective(network, codec)
    optimizer = build_optimizer(network, objective)
    curriculum = Curriculum()
    start = saved = time.monotonic()
    terms: list[dict[str, float]] = []
    with (folder / "log.jsonl").open("w") as log:
        for step in range(steps):
            rate = learning_rate(step, steps, peak)
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = draw_batch(rng, codec, curriculum.mix())
            outcome = objective(batch)
            optimizer.zero_grad(set_to_none=True)
            outcome.loss.backward()
            torch.nn.utils.clip_grad_norm_(network.model.parameters(), 1.0)
            optimizer.step()
            terms.append(outcome.terms)
            if (step + 1) % _LOG_EVERY == 0:
                log.write(_line(step + 1, time.monotonic() - start, rate, curriculum, terms) + "\n")
                log.flush()
                terms.clear()
            curriculum.record(outcome.right)
            if time.monotonic() - saved > _SAVE_SECONDS:
                network.save(folder)
                saved = time.monotonic()
    network.save(folder)


def _line(
    step: int, seconds: float, rate: float, curriculum: Curriculum, terms: list[dict[str, float]]
) -> str:
    names = {name: None for entry in terms for name in entry}
    means = {name: round(float(np.mean([e[name] for e in terms if name in e])), 4) for name in names}
    accuracy = {skill: round(value, 3) for skill, value in curriculum.accuracy.items()}
    head = {
        "step": step,
        "minutes": round(seconds / 60, 2),
        "rate": round(rate, 6),
        "stage": curriculum.stage,
    }
    return json.dumps({**head, "accuracy": accuracy, "losses": means})


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("models/page-reader"))
    parser.add_argument("--steps", type=int, default=4400)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # One thread: more of them gain nothing at this size, and results would depend on their number.
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    train(options.folder, options.steps, options.rate, options.seed)


if __name__ == "__main__":
    main()
