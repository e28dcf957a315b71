"""Many users asking about documents, turn by turn: what chains save on their traffic, against none and full prefill.

    python -m benchmarks.sessions            50 users, documents of 4 pages, about five minutes on two cores
    python -m benchmarks.sessions --help     users, size of pages, threads

Each user opens a document, popular ones more often (Zipf), and asks about it for one to six turns, each time with the
answers so far in the prompt. A third of the users have a system prompt of their own. Their turns come in one drawn
order, one request at a time, so that times to first tokens hold no waiting. The very same requests run with chains and
entries and half a second between two of them, in which chains become exact; the same with no time between; with entries
only; as full prefill with chains (what a prefix cache does); and as full prefill alone. Writes
`benchmarks/results/sessions.json` and `docs/sessions.svg`; exits non-zero, and writes nothing, where it could not
measure.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.result import ROOT, NotMeasured, write_result
from benchmarks.sessions_figures import Seen, draw, figures_of, summed
from benchmarks.ttft import SHAPES
from benchmarks.ttft_engine import GENEROUS, noise
from demo.random_model import TOKEN_EDGE, write_random_model
from demo.service_process import usable_cores
from engine.chains.tree import Chains
from engine.messages import (
    CacheOptions,
    Finished,
    GenerateRequest,
    ImageInput,
    ImagePart,
    Message,
    Sampling,
    TextPart,
)
from engine.passes.decode import decode_step
from engine.serving.generation import Generation
from engine.serving.load import load_runtime
from engine.serving.prepared import prepare
from engine.serving.refinement import Refinement
from engine.serving.runtime import Runtime
from engine.settings import ModelSettings
from store.open import open_store
from store.settings import StoreSettings

DOCUMENTS, PAGES, MOST_TURNS = 24, 4, 6
# Document number n is opened in proportion to 1 / n ** ZIPF.
ZIPF = 1.1
OWN_SYSTEM = 1 / 3
ANSWER_TOKENS = 12
REFINE_SECONDS = 300.0
SEED = 11
SYSTEM = "You are a careful reader. Answer from the pages, please."
QUESTIONS = (
    "Please read the pages with care and tell me K.",
    "And what is L on the second page?",
    "Look at the last page: is there a number that is not on the others?",
    "Say in one line what the pages are about.",
    "Where does it say so? Give me the page and the place on it.",
    "Thank you. Is anything else on the first page that I should know?",
)
# What requests say of the cache, and seconds in which nobody asks behind each.
ARMS = {
    "chains": (CacheOptions(), 0.5),
    "chains_busy": (CacheOptions(), 0.0),
    "entries": (CacheOptions(chain="off"), 0.0),
    "full_chains": (CacheOptions(policy="full"), 0.0),
    "full": (CacheOptions(policy="full", chain="off"), 0.0),
}


@dataclass(slots=True)
class User:
    """Who asks: a document, a system prompt, so many turns; `messages` grow with each."""

    document: int
    turns: int
    messages: list[Message]


def draw_users(count: int) -> tuple[list[User], list[int]]:
    """Users, and whose turn it is: a user's turns stand in order, those of different users mixed."""
    draw = random.Random(SEED)
    weights = [1 / (n + 1) ** ZIPF for n in range(DOCUMENTS)]
    users = []
    for number in range(count):
        system = (
            f"User {number} asks, and today is day {number % 7}. {SYSTEM}"
            if draw.random() < OWN_SYSTEM
            else SYSTEM
        )
        document = draw.choices(range(DOCUMENTS), weights)[0]
        users.append(User(document, draw.randint(1, MOST_TURNS), [Message("system", (TextPart(system),))]))
    order = [number for number, user in enumerate(users) for _ in range(user.turns)]
    draw.shuffle(order)
    return users, order


class Traffic:
    """One way to serve: a store and chains of its own."""

    def __init__(self, runtime: Runtime, folder: Path, cache: CacheOptions, idle: float) -> None:
        store = open_store(StoreSettings(folder, GENEROUS, 2 * GENEROUS, GENEROUS))
        self._runtime = replace(runtime, store=store, chains=Chains(GENEROUS))
        self._cache, self._idle = cache, idle
        self._refinement = Refinement(self._runtime, REFINE_SECONDS)

    def run(self, users: int, documents: Sequence[tuple[ImageInput, ...]]) -> list[Seen]:
        seen = []
        everybody, order = draw_users(users)
        for number in order:
            user = everybody[number]
            seen.append(self._turn(user, documents[user.document]))
            self._rest()
        self._runtime.store.entries.close()
        return seen

    def _rest(self) -> None:
        """What a worker does while nobody asks."""
        until = time.monotonic() + self._idle
        while not self._refinement.idle and time.monotonic() < until:
            self._refinement.step()
        self._refinement.pause()

    def _turn(self, user: User, pages: tuple[ImageInput, ...]) -> Seen:
        turn = len(user.messages) // 2
        pictures = tuple(ImagePart(i) for i in range(len(pages))) if turn == 0 else ()
        user.messages.append(Message("user", (*pictures, TextPart(QUESTIONS[turn]))))
        sampling = Sampling(max_tokens=ANSWER_TOKENS, ignore_eos=True)
        request = GenerateRequest("x", "t", tuple(user.messages), pages, sampling, self._cache)
        said: list[str] = []
        began = time.monotonic()
        prepared = prepare(self._runtime, request, began)
        generation = Generation(
            self._runtime, prepared, lambda event: said.append(getattr(event, "text", ""))
        )
        try:
            for _ in generation.prefill():
                pass
            taken, flops = time.monotonic() - began, generation.work.flops
            generation.keep()
            finished = self._answer(generation)
            generation.keep()
            unfinished = generation.unfinished()
        finally:
            generation.close()
        if unfinished is not None:
            self._refinement.offer(unfinished)
        user.messages.append(Message("assistant", (TextPart("".join(said)),)))
        own = user.messages[0].parts != (TextPart(SYSTEM),)
        return Seen(turn, own, taken, flops / 1e9, origins(finished))

    def _answer(self, generation: Generation) -> Finished:
        while generation.finished is None:
            generation.make_room()
            (answer,) = generation.writing
            logits = decode_step(self._runtime.family, [answer.decoder], [answer.token], [generation.work])
            generation.take(answer, logits[0])
        if generation.finished.report.fallback is not None:
            raise NotMeasured("a request did not run as it was asked for")
        return generation.finished


def origins(finished: Finished) -> dict[str, int]:
    """Tokens of the prompt by where their rows are from; compiled images are computed."""
    report = finished.report
    found = {
        "chained_exact": report.chained_exact,
        "chained_refreshed": report.chained_refreshed,
        "reused": report.reused + report.turns_reused,
        "refreshed": report.refreshed,
    }
    return found | {"computed": finished.usage.prompt_tokens - sum(found.values())}


def main() -> int:
    arguments = read_arguments()
    threads = arguments.threads or usable_cores()
    torch.set_num_threads(threads)
    edge = round(arguments.tokens**0.5) * TOKEN_EDGE
    documents = [
        tuple(noise(2_000_000 + PAGES * number + page, edge) for page in range(PAGES))
        for number in range(DOCUMENTS)
    ]
    with tempfile.TemporaryDirectory(prefix="conduit-sessions-") as folder, torch.inference_mode():
        model = write_random_model(Path(folder) / "model", SHAPES[arguments.shape])
        try:
            runtime = load_runtime(
                ModelSettings(str(model), device="cpu"), open_store(StoreSettings()), "raw"
            )
            if runtime.refused is not None:
                raise NotMeasured(f"the model may not reuse: {runtime.refused}")
            arms = {}
            for name, (cache, idle) in ARMS.items():
                arms[name] = Traffic(runtime, Path(folder) / name, cache, idle).run(
                    arguments.users, documents
                )
                print(f"{name:<12} {summed(arms[name])}", flush=True)
            ratios, figures = figures_of(arms)
            settings = {
                **vars(arguments),
                "threads": threads,
                "documents": DOCUMENTS,
                "pages": PAGES,
                "zipf": ZIPF,
            }
            path = write_result(__file__, settings, ratios, figures)
        except NotMeasured as error:
            print(f"sessions: could not measure: {error}", file=sys.stderr)
            return 1
    draw(arms, MOST_TURNS, ROOT / "docs" / "sessions.svg")
    print(f"\n{path}")
    for name, value in ratios.items():
        print(f"  {name:<40} {value:.3f}")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--shape", choices=SHAPES, default="mid")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=100, help="visual tokens of a page (a square number)")
    parser.add_argument("--threads", type=int, help="torch threads (default: every core)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
