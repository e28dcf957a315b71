"""Serving under load: the real service in processes of its own, and 1 to 32 users who stream answers from it.

    python -m benchmarks.serve            the shipped model and a random mid-size one, some minutes
    python -m benchmarks.serve --quick    a smoke test of a few requests that writes no result file
    python -m benchmarks.serve --help     users, requests, threads

Everything is on loopback: service and users share one machine, so figures hold for both together. Each request asks
about two pages behind a system prompt of its own; none, one or both of the pages are in the store, which is a hit ratio
of 0, 50 or 100 %. A user asks again as soon as the last answer is complete. Pages are sent inline; one round at the
highest load has them fetched from the service's own demo pages instead.
Users run on uvloop, as the service does, so that they take little of what is measured.
Front-end overhead is the first token's time as the user sees it without the engine's own (its queue included): parsing,
picture decoding, the way to the worker and back, HTTP, and what the user's side of this benchmark takes itself. The
random model writes mostly broken characters, which are held until a few tokens later: its overhead has that in it.
Writes `benchmarks/results/serve.json`; exits non-zero, and writes nothing, where it could not measure. Where requests
failed the file says how many, and the exit status is non-zero too.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks import processes
from benchmarks.result import NotMeasured, write_result
from benchmarks.serve_features import features
from benchmarks.serve_flood import flood
from benchmarks.serve_load import Asked, Round, drive
from demo.pages import PAGE_PX, Page, draw_pages
from demo.pages_app import draw
from demo.questions import ask_list, draw_reading
from demo.random_model import MID_SIZE, SHIPPED, TINY, TOKEN_EDGE, RandomShape, write_random_model
from demo.scenario import page_urls
from demo.service_process import ServiceDidNotStart, ServiceProcess

HIT_RATIOS = {0: ("miss", "miss"), 50: ("hit", "miss"), 100: ("hit", "hit")}
KNOWN_PAGES = 8
# As many visual tokens as the shipped model takes of a page, and four times that.
TINY_LIKE_SHIPPED = replace(TINY, max_pixels=36 * TOKEN_EDGE**2)
MID_EDGE = 12 * TOKEN_EDGE


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to serve: `shape` None for the one that ships, pages of `edge` pixels, `requests` of each user at each
    load (so that a round of many users is as long for each as a round of one). `shrinks`: it reads a picture of any
    size as a few tokens, so that it can be flooded with large ones."""

    name: str
    shape: RandomShape | None
    edge: int
    requests: int
    shrinks: bool = False

    def folder(self, work: Path) -> Path:
        return SHIPPED if self.shape is None else write_random_model(work / self.name, self.shape)


@dataclass(frozen=True, slots=True)
class Bodies:
    """Makes requests that nobody asked before. `url` is the service's base where pages are fetched from it, None where
    they are sent inline."""

    rng: np.random.Generator
    known: tuple[Page, ...]
    edge: int
    max_tokens: int
    url: str | None = None

    def make(self, count: int, outcomes: tuple[str, ...]) -> list[Asked]:
        return [self._one(outcomes) for _ in range(count)]

    def warming(self) -> Iterator[Asked]:
        """Every known page once, two at a time."""
        for first, second in zip(self.known[::2], self.known[1::2], strict=True):
            yield self._about((first, second), ("miss", "miss"))

    def _one(self, outcomes: tuple[str, ...]) -> Asked:
        fresh = iter(draw_pages(self.rng, len(outcomes)))
        picked = iter(self.rng.choice(len(self.known), len(outcomes), replace=False).tolist())
        pages = tuple(self.known[next(picked)] if o == "hit" else next(fresh) for o in outcomes)
        return self._about(pages, outcomes)

    def _about(self, pages: Sequence[Page], outcomes: tuple[str, ...]) -> Asked:
        system, reading = draw_reading(self.rng)
        text = ask_list(self.rng, pages, reading, 0, by_order=True).text
        images = [{"type": "image_url", "image_url": {"url": address}} for address in self._addresses(pages)]
        body = {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": [*images, {"type": "text", "text": text}]},
            ],
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return Asked(json.dumps(body).encode(), outcomes)

    def _addresses(self, pages: Sequence[Page]) -> list[str]:
        if self.url is not None:
            return page_urls(pages, self.url, self.edge)
        files = [base64.b64encode(draw(page, self.edge)).decode() for page in pages]
        return [f"data:image/png;base64,{file}" for file in files]


def main() -> int:
    arguments = read_arguments()
    with tempfile.TemporaryDirectory(prefix="conduit-serve-") as folder:
        script = Path(folder) / "serve.py" if arguments.quick else Path(__file__)
        try:
            figures = {
                subject.name: uvloop.run(measure(subject, Path(folder), arguments))
                for subject in subjects(arguments.quick)
            }
            ratios = ratios_of(figures)
            settings = {**vars(arguments), "images_per_request": 2}
            path = write_result(script, settings, ratios, figures)
        except (NotMeasured, ServiceDidNotStart) as error:
            print(f"serve: could not measure: {error}", file=sys.stderr)
            return 1
    print("" if arguments.quick else f"\n{path}")
    for name, value in ratios.items():
        print(f"  {name:<48} {value:.3f}")
    return int(ratios["errors"] > 0)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: tiny models, few requests")
    parser.add_argument("--users", type=int, nargs="+", help="loads (default: 1 8 32)")
    parser.add_argument("--max-tokens", type=int, default=32, help="longest answer")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the worker")
    parser.add_argument("--clients", type=int, help="who send 4-megapixel pictures (default: 32)")
    arguments = parser.parse_args()
    arguments.users = sorted({1, 8, *(arguments.users or ((1, 8) if arguments.quick else (1, 8, 32)))})
    arguments.clients = arguments.clients or (4 if arguments.quick else 32)
    return arguments


def subjects(quick: bool) -> list[Subject]:
    shipped = None if list(SHIPPED.glob("*.safetensors")) else TINY_LIKE_SHIPPED
    if quick:
        return [
            Subject("page-reader", shipped, PAGE_PX, 2, shrinks=True),
            Subject("mid-size", TINY, MID_EDGE, 1),
        ]
    return [
        Subject("page-reader", shipped, PAGE_PX, 12, shrinks=True),
        Subject("mid-size", MID_SIZE, MID_EDGE, 4),
    ]


async def measure(subject: Subject, work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds on one model. Raises `NotMeasured` or `ServiceDidNotStart`."""
    print(f"\n{subject.name}: starting the service", flush=True)
    place = work / f"{subject.name}-service"
    place.mkdir()
    settings = {
        "model": str(subject.folder(work)),
        "threads": str(arguments.threads),
        "chain": "off",  # what is measured is reuse behind ever other prompts
        "allowed_private_hosts": "127.0.0.1",
        "fetch_timeout": "120",  # the host that hangs must still hang when the others are done
        "max_concurrent": str(max(64, 2 * max(arguments.users), 2 * arguments.clients)),
        "max_queue": str(max(64, 2 * max(arguments.users), 2 * arguments.clients)),
    }
    with ServiceProcess(place, **settings) as service:
        bench = Bench(service, subject, arguments)
        await bench.warm_up()
        before = bench.memory()
        figures: dict[str, Any] = {"rounds": await bench.rounds()}
        figures["known_pages_by_url"] = (await bench.by_url()).figures()
        figures["features"] = await bench.features()
        if subject.shrinks:
            figures["flood"] = await flood(service.url, arguments.clients, 1 if arguments.quick else 2)
            show_flood(figures["flood"])
        figures["resident_mib"] = {"before": before, "after": bench.memory()}
    return figures


class Bench:
    """The rounds on one running service."""

    def __init__(self, service: ServiceProcess, subject: Subject, arguments: argparse.Namespace) -> None:
        self._service = service
        self._subject, self._arguments = subject, arguments
        self._users: list[int] = arguments.users
        rng = np.random.default_rng(0)
        known = draw_pages(rng, KNOWN_PAGES)
        self._bodies = Bodies(rng, known, subject.edge, arguments.max_tokens)
        self._processes = {"api": service.pid, "worker": processes.worker_of(service.pid)}

    async def warm_up(self) -> None:
        """Store the known pages, then let every buffer size be seen once. Raises `NotMeasured`."""
        users = max(self._users)
        checked(await drive(self._service.url, 1, list(self._bodies.warming())))
        for outcomes in HIT_RATIOS.values():
            checked(await drive(self._service.url, users, self._bodies.make(users, outcomes)))

    async def rounds(self) -> dict[str, dict[str, Any]]:
        """Figures by load, then by hit ratio."""
        table: dict[str, dict[str, Any]] = {}
        for users in self._users:
            for percent, outcomes in HIT_RATIOS.items():
                requests = self._bodies.make(users * self._subject.requests, outcomes)
                figures = await self._round(users, requests)
                show_round(users, percent, figures)
                table.setdefault(f"{users}_users", {})[f"{percent}_percent_hits"] = figures
        return table

    async def by_url(self) -> Round:
        """The highest load with every page known, but fetched by URL and decoded anew."""
        users = max(self._users)
        bodies = replace(self._bodies, url=self._service.url)
        requests = bodies.make(users * self._subject.requests, HIT_RATIOS[100])
        return checked(await drive(self._service.url, users, requests))

    async def features(self) -> dict[str, Any]:
        """What options of a request cost, with every page known."""
        rounds = 2 if self._arguments.quick else 7
        return await features(self._service.url, lambda: self._bodies.make(1, HIT_RATIOS[100])[0], rounds)

    def memory(self) -> dict[str, float]:
        """MiB that each process holds."""
        return {name: round(processes.resident(pid) / 2**20, 1) for name, pid in self._processes.items()}

    async def _round(self, users: int, requests: Sequence[Asked]) -> dict[str, Any]:
        before = self._processor_seconds()
        done = checked(await drive(self._service.url, users, requests))
        tokens = sum(sample.tokens for sample in done.samples)
        used = {name: after - before[name] for name, after in self._processor_seconds().items()}
        busy = {
            "api_cpu_ms_per_request": 1000 * used["api"] / len(done.samples),
            "api_cpu_ms_per_token": 1000 * used["api"] / tokens,
            "worker_cpu_ms_per_token": 1000 * used["worker"] / tokens,
        }
        return {**done.figures(), **{name: round(value, 3) for name, value in busy.items()}}

    def _processor_seconds(self) -> dict[str, float]:
        return {name: processes.processor_seconds(pid) for name, pid in self._processes.items()}


def checked(done: Round) -> Round:
    """Some requests may fail and be counted; where none was answered nothing was measured."""
    if not done.samples:
        raise NotMeasured(f"no request was answered: {done.errors[0]}")
    for error in sorted(set(done.errors)):
        print(f"  failed: {error} ({done.errors.count(error)} times)", file=sys.stderr)
    return done


def ratios_of(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of the shipped model, and the same of the mid-size one by its name. At the highest load: overhead with every page
    known, gaps between tokens with every second page to be compiled in between."""
    ratios: dict[str, float] = {}
    for name, figure in figures.items():
        rounds = figure["rounds"]
        label = "" if name == "page-reader" else f"_{name.replace('-', '_')}"
        many = rounds[max(rounds, key=lambda key: int(key.split("_")[0]))]
        throughput = [rounds[f"{users}_users"]["100_percent_hits"]["tokens_per_second"] for users in (8, 1)]
        gaps = many["50_percent_hits"]["itl_ms"]
        ratios[f"batched_8_vs_single_throughput{label}"] = throughput[0] / throughput[1]
        ratios[f"front_end_overhead_ms_p50{label}"] = many["100_percent_hits"]["front_end_overhead_ms"]["p50"]
        ratios[f"itl_p99_vs_p50{label}"] = gaps["p99"] / gaps["p50"]
        options = figure["features"]
        ratios[f"n4_vs_4_requests{label}"] = options["n4_seconds"] / options["4_requests_seconds"]
        ratios[f"n4_vs_4_at_once{label}"] = options["n4_seconds"] / options["4_requests_at_once_seconds"]
        ratios[f"constrained_vs_free_itl{label}"] = options["constrained_itl_ms"] / options["free_itl_ms"]
    ratios["livez_ms_p99"] = figures["page-reader"]["flood"]["livez_ms"]["p99"]
    ratios["errors"] = float(sum(map(errors_of, figures.values())))
    return ratios


def errors_of(figures: dict[str, Any]) -> int:
    parts = [cell for load in figures["rounds"].values() for cell in load.values()]
    parts += [figures[name] for name in ("known_pages_by_url", "flood") if name in figures]
    return sum(int(part["errors"]) for part in parts)


def show_round(users: int, percent: int, figures: dict[str, Any]) -> None:
    ttft, gaps, overhead = figures["ttft_ms"], figures["itl_ms"], figures["front_end_overhead_ms"]
    print(
        f"  {users:>2} users, {percent:>3} % hits: {figures['requests_per_second']:6.1f} requests/s"
        f" {figures['tokens_per_second']:7.1f} tokens/s, TTFT {ttft['p50']:7.1f} / {ttft['p99']:7.1f} ms,"
        f" ITL {gaps.get('p50', 0):5.1f} / {gaps.get('p99', 0):5.1f} ms, overhead {overhead['p50']:5.1f} ms",
        flush=True,
    )


def show_flood(figures: dict[str, Any]) -> None:
    livez = figures["livez_ms"]
    print(
        f"  {figures['clients']} clients with 4-megapixel pictures: /livez {livez['p50']:.1f} / {livez['p99']:.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
