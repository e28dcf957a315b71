"""Where a conversation goes on: an unchanged prefix, a follow-up turn, and edited histories, against full prefill.

    python -m benchmarks.prefix            4 pages of 1,024 visual tokens, and 20 screenshots of 256 in a conversation
    python -m benchmarks.prefix --help     shape, threads, rounds

Every arm is one request up to its first token, in one process, in turn with a full prefill of the very same prompt
whose image features are at hand (the harder comparison). Arms read chains and entries and leave none, so that each
round finds what the first one found; images are known but the appended one, which is compiled. Medians of the rounds.
Writes `benchmarks/results/prefix.json`; exits non-zero, and writes nothing, where it could not measure.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import NotMeasured, write_result
from benchmarks.ttft import SHAPES
from benchmarks.ttft_engine import GENEROUS, noise, pixels_of
from demo.random_model import TOKEN_EDGE, write_random_model
from demo.service_process import usable_cores
from engine.chains.tree import Chains
from engine.messages import (
    CacheOptions,
    GenerateRequest,
    ImageInput,
    ImagePart,
    Message,
    Part,
    Sampling,
    TextDelta,
    TextPart,
)
from engine.passes.forward import Work
from engine.passes.refresh import Prefill, slots_needed
from engine.reports import KvReport
from engine.serving.chaining import Chaining
from engine.serving.generation import Generation
from engine.serving.load import load_runtime
from engine.serving.prepared import prepare
from engine.serving.runtime import Runtime
from engine.settings import ModelSettings
from store.open import open_store
from store.settings import StoreSettings

PAGES, PAGE_TOKENS = 4, 1024
SCREENS, SCREEN_TOKENS = 20, 256
SYSTEM = "You are a careful reader. Answer from the pages, please."
QUESTION = "Please read the pages with care, look at the red page and tell me K."
STEP = "This is the screen now. Say what you see and what you would do next to reach the goal."
DID = "I see the list and the button below it. I press the button and wait for the next screen to appear."
ANSWER_TOKENS = 16
MEASURED = CacheOptions(mode="read")
# Arms whose history was edited are measured with their text reused as well.
EDITED = ("drop_oldest", "insert", "swap", "new_system_prompt")
TURNS = "_turns"
# Arms whose chain holds all images, so that they must answer as full prefill does.
EXACT = ("unchanged", "follow_up", "restart")
Images = tuple[ImageInput, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation with its images."""

    messages: tuple[Message, ...]
    images: Images


class Bench:
    """One model, one store, chains without a bound that matters."""

    def __init__(self, folder: Path, model: Path, arguments: argparse.Namespace) -> None:
        self._stored = stored = StoreSettings(folder / "store", GENEROUS, 2 * GENEROUS, GENEROUS)
        settings = ModelSettings(str(model), device=arguments.device, dtype=arguments.dtype)
        self.runtime: Runtime = load_runtime(settings, open_store(stored), stored.codec, GENEROUS)
        if self.runtime.refused is not None:
            raise NotMeasured(f"the model may not reuse: {self.runtime.refused}")
        self._features: dict[bytes, torch.Tensor] = {}

    def run(self, asked: Asked, cache: CacheOptions, tokens: int = 1) -> tuple[float, Generation, str]:
        """Seconds to the first token; the request is carried to its end, and what it leaves is kept."""
        said: list[str] = []
        request = GenerateRequest("x", "t", asked.messages, asked.images, Sampling(max_tokens=tokens), cache)
        began = time.monotonic()
        prepared = prepare(self.runtime, request, began)
        generation = Generation(
            self.runtime,
            prepared,
            lambda event: said.append(event.text if isinstance(event, TextDelta) else ""),
        )
        try:
            for _ in generation.prefill():
                pass
            taken = time.monotonic() - began
            generation.keep()
            generation.write()
        finally:
            generation.close()
        return taken, generation, "".join(said)

    def restart(self) -> None:
        """Nothing is in memory any more; chains and entries are on the disk."""
        self.runtime.store.entries.close()
        self.runtime = replace(self.runtime, store=open_store(self._stored), chains=Chains(GENEROUS))
        self.runtime.store.admin.stats()  # opens the store, as the service does before it is ready

    def report(self, generation: Generation) -> KvReport:
        if generation.finished is None or generation.finished.report.fallback is not None:
            raise NotMeasured("a request did not run as it was asked for")
        return generation.finished.report

    def full(self, asked: Asked) -> tuple[float, torch.Tensor]:
        """Seconds and logits of a full prefill with the features of all images at hand."""
        request = GenerateRequest("x", "t", asked.messages, asked.images, Sampling(max_tokens=1))
        layout = prepare(self.runtime, request, 0.0).layout
        features = [self._encoded(asked.images[span.image]) for span in layout.spans]
        kv = self.runtime.pool.take(slots_needed(layout))
        try:
            began = time.perf_counter()
            logits = Prefill(self.runtime.family, kv, layout, features, Work()).full().logits
            return time.perf_counter() - began, logits
        finally:
            self.runtime.pool.give_back(kv)

    def copying(self, asked: Asked) -> float:
        """Seconds to copy the chain of a prompt into a request's KV."""
        request = GenerateRequest("x", "t", asked.messages, asked.images, Sampling(max_tokens=1), MEASURED)
        prepared = prepare(self.runtime, request, 0.0)
        chaining = Chaining(self.runtime, "t", prepared.choice, prepared.layout, asked.images)
        kv = self.runtime.pool.take(prepared.layout.length)
        try:
            began = time.perf_counter()
            chaining.match.write_head(kv.keys, kv.values)
            return time.perf_counter() - began
        finally:
            self.runtime.pool.give_back(kv)
            chaining.release()

    def _encoded(self, image: ImageInput) -> torch.Tensor:
        if image.digest not in self._features:
            self._features[image.digest] = self.runtime.family.encode(pixels_of(image))
        return self._features[image.digest]


def document(pages: Images, question: str, system: str = SYSTEM) -> Asked:
    parts: tuple[Part, ...] = (*(ImagePart(i) for i in range(len(pages))), TextPart(question))
    return Asked((Message("system", (TextPart(system),)), Message("user", parts)), pages)


def steps(screens: Images, question: str) -> Asked:
    """A conversation with a screenshot a turn, and a question about all of it."""
    messages = [Message("system", (TextPart(SYSTEM),))]
    for i in range(len(screens)):
        messages.append(Message("user", (ImagePart(i), TextPart(STEP))))
        messages.append(Message("assistant", (TextPart(DID),)))
    return Asked((*messages, Message("user", (TextPart(question),))), screens)


def follow_up(before: Asked, answer: str, question: str) -> Asked:
    more = (Message("assistant", (TextPart(answer),)), Message("user", (TextPart(question),)))
    return replace(before, messages=(*before.messages, *more))


class Prompts:
    """What is asked in round `number`: no two rounds ask the same, so that none finds another's question."""

    def __init__(self, rounds: int) -> None:
        self.pages, self._others = pictures(PAGES, PAGE_TOKENS, 0), pictures(rounds + 1, PAGE_TOKENS, 100)
        self.screens, self._spare = pictures(SCREENS, SCREEN_TOKENS, 200), pictures(1, SCREEN_TOKENS, 300)
        self.document, self.conversation = document(self.pages, QUESTION), steps(self.screens, QUESTION)

    def known(self) -> tuple[Asked, ...]:
        """Prompts that bring every image into the store but those that are appended."""
        return self.document, steps((*self.screens, *self._spare), QUESTION)

    def of_round(self, number: int, answer: str) -> dict[str, Asked]:
        new, middle, screens = f"And what is number {number} on the blue page?", SCREENS // 2, self.screens
        swapped = (*screens[:5], screens[6], screens[5], *screens[7:])
        return {
            "unchanged": document(self.pages, new),
            "follow_up": follow_up(self.document, answer, new),
            "append_image": document((*self.pages, self._others[number]), new),
            "drop_oldest": steps(screens[1:], new),
            "insert": steps((*screens[:middle], *self._spare, *screens[middle:]), new),
            "swap": steps(swapped, new),
            "new_system_prompt": document(self.pages, new, f"Today is day {number}. {SYSTEM}"),
        }


@dataclass(slots=True)
class Found:
    """Seconds of ours and of full prefill by arm and round, and what else was seen."""

    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    tokens: dict[str, Mapping[str, int]] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    text: list[float] = field(default_factory=list)


def run_rounds(bench: Bench, rounds: int) -> Found:
    """One round that does not count, then `rounds` of every arm in turn."""
    prompts, found = Prompts(rounds), Found()
    for known in prompts.known():
        bench.run(known, CacheOptions(chain="off"))
    _, _, answer = bench.run(prompts.document, CacheOptions(policy="full"), ANSWER_TOKENS)
    bench.run(prompts.conversation, CacheOptions(policy="full"))
    for number in range(rounds + 1):
        for name, asked in prompts.of_round(number, answer).items():
            run_arm(bench, found, name, asked, counts=number > 0)
    for number in range(rounds + 1):
        bench.restart()
        new = document(prompts.pages, f"And where is number {number} after a restart?")
        run_arm(bench, found, "restart", new, counts=number > 0)
    return found


def run_arm(bench: Bench, found: Found, name: str, asked: Asked, counts: bool) -> None:
    ways = {name: MEASURED}
    if name in EDITED:
        ways[name + TURNS] = replace(MEASURED, turns="reuse")
    full, logits = bench.full(asked)
    for way, cache in ways.items():
        seconds, generation, _ = bench.run(asked, cache)
        found.tokens[way] = origins(bench.report(generation))
        print(f"{way:<24} {seconds:8.3f} s, full prefill {full:8.3f} s", flush=True)
        if way in EXACT and generation.first_logits is not None:
            found.errors.append(float((generation.first_logits - logits).abs().max()))
        if counts:
            found.seconds[way].append((seconds, full))
    if counts and name == "drop_oldest":
        found.text.append(bench.run(asked, replace(MEASURED, policy="reuse"))[0])


def summary(bench: Bench, found: Found) -> tuple[dict[str, float], dict[str, Any]]:
    medians = {
        name: [statistics.median(both) for both in zip(*taken, strict=True)]
        for name, taken in found.seconds.items()
    }
    ratios = {f"{name}_vs_full": ours / full for name, (ours, full) in medians.items()}
    ratios["chain_identity_error"] = max(found.errors)
    ratios["text_share_of_drop_oldest"] = statistics.median(found.text) / medians["drop_oldest"][0]
    copied = document(pictures(PAGES, PAGE_TOKENS, 0), "y")
    figures = {
        "seconds": {name: {"chained": ours, "full": full} for name, (ours, full) in medians.items()},
        "tokens": found.tokens,
        "copy_seconds": statistics.median(bench.copying(copied) for _ in range(5)),
        "chain_bytes": bench.runtime.chains.stats().bytes,
    }
    return ratios, figures


def origins(report: KvReport) -> Mapping[str, int]:
    return {
        name: getattr(report, name)
        for name in (
            "visual_tokens",
            "reused",
            "compiled",
            "refreshed",
            "chained_exact",
            "chained_refreshed",
            "turns_reused",
        )
    }


def pictures(count: int, tokens: int, seed: int) -> Images:
    edge = round(tokens**0.5) * TOKEN_EDGE
    return tuple(noise(1_000_000 + seed + i, edge) for i in range(count))


def main() -> int:
    arguments = read_arguments()
    threads = arguments.threads or usable_cores()
    torch.set_num_threads(threads)
    sizes = {"pages": [PAGES, PAGE_TOKENS], "screens": [SCREENS, SCREEN_TOKENS]}
    settings = {**vars(arguments), "threads": threads, **sizes}
    with tempfile.TemporaryDirectory(prefix="conduit-prefix-") as folder, torch.inference_mode():
        model = write_random_model(Path(folder) / "model", SHAPES[arguments.shape])
        bench = Bench(Path(folder), model, arguments)
        try:
            ratios, figures = summary(bench, run_rounds(bench, arguments.rounds))
            shape = asdict(SHAPES[arguments.shape])
            path = write_result(__file__, settings, ratios, {"model": shape, **figures})
        except NotMeasured as error:
            print(f"prefix: could not measure: {error}", file=sys.stderr)
            return 1
        finally:
            bench.runtime.store.entries.close()
    print(f"\n{path}")
    for name, value in ratios.items():
        print(f"  {name:<40} {value:.6f}")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prefix", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--shape", choices=("mid", "3b"), default="mid")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="torch threads (default: every core)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
