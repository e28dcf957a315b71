"""Many users asking about documents, turn by turn: what chains save on their traffic, against none and full prefill.

    python -m benchmarks.sessions            50 users, documents of 4 pages, about five minutes on two cores
    python -m benchmarks.sessions --help     users, size of pages, threads

Each user opens a document, popular ones more often (Zipf), and asks about it for one to six turns, each time with the
answers so far in the prompt. A third of the users have a system prompt of their own. Their turns come in one drawn
order, one request at a time, so that times to first tokens hold no waiting. The very same requests run in five ways,
each request in all of them in turn: with chains and entries and a little time behind each request, in which chains
become exact; the same with no such time; with entries only; as full prefill with chains (what a prefix cache does); and
as full prefill alone. Writes `benchmarks/results/sessions.json` and `docs/pictures/sessions.svg`; exits non-zero, and
writes nothing, where it could not measure.
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
from demo.random_model import TOKEN_EDGE, RandomShape, write_random_model
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

# So small that all ways to serve it fit into a few minutes.
SMALLER = {**SHAPES, "small": RandomShape(hidden=256, intermediate=704, layers=8)}
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
# What requests say of the cache, and pieces of idle work behind each.
ARMS = {
    "chains": (CacheOptions(), 8),
    "chains_busy": (CacheOptions(), 0),
    "entries": (CacheOptions(chain="off"), 0),
    "full_chains": (CacheOptions(policy="full"), 0),
    "full": (CacheOptions(policy="full", chain="off"), 0),
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
    """One way to serve all users: a store and chains of its own. `idle`: pieces of refinement behind each request."""

    def __init__(
        self, runtime: Runtime, folder: Path, cache: CacheOptions, idle: int, users: Sequence[User]
    ) -> None:
        store = open_store(StoreSettings(folder, GENEROUS, 2 * GENEROUS, GENEROUS))
        self._runtime = replace(runtime, store=store, chains=Chains(GENEROUS))
        self._cache, self._idle, self._users = cache, idle, users
        self._refinement = Refinement(self._runtime, REFINE_SECONDS)
        self.seen: list[Seen] = []

    def ask(self, number: int, documents: Sequence[tuple[ImageInput, ...]]) -> None:
        """The next turn of a user."""
        user = self._users[number]
        self.seen.append(self._turn(user, documents[user.document]))
        self._rest()

    def close(self) -> None:
        self._runtime.store.entries.close()

    def _rest(self) -> None:
        """What a worker does while nobody asks."""
        for _ in range(self._idle):
            if not self._refinement.idle:
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


def run(
    runtime: Runtime, folder: Path, users: int, documents: Sequence[tuple[ImageInput, ...]]
) -> dict[str, list[Seen]]:
    """Every request in all ways in turn."""
    _, order = draw_users(users)
    ways = {
        name: Traffic(runtime, folder / name, cache, idle, draw_users(users)[0])
        for name, (cache, idle) in ARMS.items()
    }
    for place, number in enumerate(order):
        for way in ways.values():
            way.ask(number, documents)
        if place % 20 == 0:
            print(f"{place} of {len(order)} requests", flush=True)
    for name, way in ways.items():
        way.close()
        print(f"{name:<12} {summed(way.seen)}", flush=True)
    return {name: way.seen for name, way in ways.items()}


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
        model = write_random_model(Path(folder) / "model", SMALLER[arguments.shape])
        try:
            runtime = load_runtime(
                ModelSettings(str(model), device="cpu"), open_store(StoreSettings()), "raw"
            )
            if runtime.refused is not None:
                raise NotMeasured(f"the model may not reuse: {runtime.refused}")
            arms = run(runtime, Path(folder), arguments.users, documents)
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
    draw(figures, ROOT / "docs" / "pictures" / "sessions.svg")
    print(f"\n{path}")
    for name, value in ratios.items():
        print(f"  {name:<40} {value:.3f}")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sessions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--shape", choices=SMALLER, default="small")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=100, help="visual tokens of a page (a square number)")
    parser.add_argument("--threads", type=int, help="torch threads (default: every core)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
