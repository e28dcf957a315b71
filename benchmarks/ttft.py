"""Time to the first token: entries reused and refreshed against full prefill, on a random model of a real size.

    python -m benchmarks.ttft                       4 images of 1,024 visual tokens on the mid-size model
    python -m benchmarks.ttft --help                shapes, images, dtype, device, threads, rounds

All arms run in turn, in one process, several rounds; figures are medians. `full` uses the kernel's causal flag and is
shown with the vision tower run and with its features at hand; ratios for warm requests use the latter, the harder
comparison. TTFT is taken inside the engine, and over real HTTP with a service in a process of its own.
Writes `benchmarks/results/ttft.json`; exits non-zero, and writes nothing, where it could not measure.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import cost_model
from benchmarks.profiling import phases, time_by_kind
from benchmarks.result import NotMeasured, write_result
from benchmarks.ttft_engine import EngineArms, Sample
from benchmarks.ttft_http import over_http
from demo.random_model import LIKE_3B, MID_SIZE, TINY, TOKEN_EDGE, RandomShape, write_random_model
from demo.service_process import usable_cores

SHAPES = {"mid": MID_SIZE, "3b": LIKE_3B, "tiny": TINY}


def main() -> int:
    arguments = read_arguments()
    threads = arguments.threads or usable_cores()
    torch.set_num_threads(threads)
    edge = round(arguments.tokens**0.5) * TOKEN_EDGE
    settings = {**vars(arguments), "threads": threads, "image_pixels": [edge, edge]}
    with tempfile.TemporaryDirectory(prefix="conduit-ttft-") as folder:
        model = make_model(Path(folder), arguments)
        ratios: dict[str, float] = {}
        figures: dict[str, Any] = {"model": asdict(SHAPES[arguments.shape])}
        try:
            for count in arguments.images:
                label = "" if len(arguments.images) == 1 else f"_{count}_images"
                found, figure = measure(arguments, Path(folder), model, count, edge)
                ratios |= {f"{name}{label}": value for name, value in found.items()}
                figures[f"{count}_images"] = figure
            path = write_result(Path(__file__).with_stem(arguments.name), settings, ratios, figures)
        except NotMeasured as error:
            print(f"ttft: could not measure: {error}", file=sys.stderr)
            return 1
    print(f"\n{path}")
    for name, value in ratios.items():
        print(f"  {name:<40} {value:.3f}")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ttft", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--shape", choices=SHAPES, default="mid")
    parser.add_argument(
        "--images", type=int, nargs="+", default=[4], help="images of a request, several in turn"
    )
    parser.add_argument(
        "--tokens", type=int, default=1024, help="visual tokens of an image (a square number)"
    )
    parser.add_argument("--ratio", type=float, default=0.10, help="refresh ratio")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch threads (default: every core)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--http", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--name", default="ttft", help="of the result file")
    return parser.parse_args()


def make_model(folder: Path, arguments: argparse.Namespace) -> Path:
    shape: RandomShape = SHAPES[arguments.shape]
    print(f"making a random model of shape {arguments.shape}", flush=True)
    dtype: torch.dtype = getattr(torch, arguments.dtype)
    return write_random_model(folder / "model", shape, dtype=dtype, device=arguments.device)


def measure(
    arguments: argparse.Namespace, folder: Path, model: Path, count: int, edge: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Ratios and figures for requests with `count` images. Raises `NotMeasured`."""
    arms = EngineArms(folder, model, arguments.device, arguments.dtype, count, edge, arguments.ratio)
    try:
        print(f"\n{count} images: {arms.describe()}", flush=True)
        samples = alternate(arms.all(), arguments.rounds)
        tiers = {
            name: seconds(alternate({name: arm}, arguments.rounds)[name]) for name, arm in arms.by_tier()
        }
        profile = {"phases": phases(arms), "kinds_of_work": time_by_kind(arms)}
        work, error = compare_work(arms, samples)
    finally:
        arms.close()
    figures: dict[str, Any] = {
        "prompt": arms.sizes(),
        "engine_ttft_seconds": {name: seconds(found) for name, found in samples.items()},
        "warm_from_tier_seconds": tiers,
        "work": work,
        "profile": profile,
    }
    if arguments.http:
        figures["http_ttft_seconds"] = over_http(folder, model, arguments, count, edge)
    medians = {name: statistics.median(s.seconds for s in found) for name, found in samples.items()}
    show(medians, tiers, figures)
    return ratios_of(medians, error), figures


def alternate(arms: dict[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """One unmeasured round, then `rounds` of every arm in turn."""
    samples: dict[str, list[Sample]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, arm in arms.items():
            sample = arm()
            if number:
                samples[name].append(sample)
    return samples


def seconds(samples: list[Sample]) -> dict[str, float]:
    taken = [sample.seconds for sample in samples]
    return {"median": statistics.median(taken), "least": min(taken), "most": max(taken)}


def ratios_of(medians: dict[str, float], flops_error: float) -> dict[str, float]:
    return {
        "warm_r10_speedup": medians["full_vision_warm"] / medians["warm"],
        "warm_r10_speedup_with_vision": medians["full_vision_cold"] / medians["warm"],
        "cold_vs_full": medians["cold"] / medians["full_vision_cold"],
        "k1_default_prompt_vs_reuse": medians["one_image_default_prompt"] / medians["one_image_reuse"],
        "flops_model_error": flops_error,
    }


def compare_work(
    arms: EngineArms, samples: dict[str, list[Sample]]
) -> tuple[dict[str, dict[str, float]], float]:
    """GFLOP of each arm as counted and by formula, and the largest relative difference."""
    formulas = arms.formulas(samples["warm"][-1].refreshed)
    table = {
        name: {"counted_gflop": samples[name][-1].flops / 1e9, "formula_gflop": formula / 1e9}
        for name, formula in formulas.items()
    }
    untrimmed = cost_model.untrimmed(
        arms.shape, arms.layout.length, arms.layout.length * (arms.layout.length + 1) / 2
    )
    table["full_vision_warm"]["formula_without_trimming_gflop"] = untrimmed / 1e9
    error = max(abs(row["counted_gflop"] / row["formula_gflop"] - 1) for row in table.values())
    return table, error


def show(medians: dict[str, float], tiers: dict[str, dict[str, float]], figures: dict[str, Any]) -> None:
    for name, value in medians.items():
        print(f"  {name:<28} {value * 1000:9.1f} ms   {medians['full_vision_warm'] / value:6.2f}x")
    for name, spread in tiers.items():
        print(f"  warm, entries from {name:<9} {spread['median'] * 1000:9.1f} ms")
    print("  counted / formula GFLOP: ", end="")
    print(
        ", ".join(
            f"{n} {r['counted_gflop']:.1f} / {r['formula_gflop']:.1f}" for n, r in figures["work"].items()
        )
    )
    for name, phase in figures["profile"]["phases"].items():
        print(f"  phase {name:<22} {phase['seconds'] * 1000:9.1f} ms {phase['gflop']:9.2f} GFLOP")
    for name, kind in figures["profile"]["kinds_of_work"].items():
        print(
            f"  work  {name:<22} full {kind['full']:.3f} s, warm {kind['warm']:.3f} s, {kind['ratio']:.1f}x"
        )
    for name, spread in figures.get("http_ttft_seconds", {}).items():
        print(f"  HTTP  {name:<22} {spread['median'] * 1000:9.1f} ms")


if __name__ == "__main__":
    sys.exit(main())
