"""A worker in a process of its own that answers conversation after conversation until it is killed: the number of each
is printed when it is answered."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from engine.messages import CacheOptions, GenerateRequest
from engine.serving.worker import Worker
from engine.settings import Limits
from tests.engine.asking import Client, ask, open_runtime, restarted, store_settings
from tests.engine.conftest import said, user


def conversation(number: int) -> GenerateRequest:
    """Full prefill and refreshed prompts in turn, of texts of several lengths."""
    system = said("system", f"Number {number}. " + "Read slowly. " * (number % 40))
    cache = CacheOptions(policy="full" if number % 2 else "conduit")
    return ask(f"c{number}", (system, user(0, 1, "What is K?")), cache=cache)


def main(model: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    runtime = restarted(open_runtime(model, None), replace(store_settings(folder), memory_bytes=0))
    worker = Worker(runtime, Limits(waiting=8, running=2))
    worker.start()
    client = Client(worker)
    for number in count():
        client.answer(conversation(number))
        print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
