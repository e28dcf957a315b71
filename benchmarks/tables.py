"""Write the tables of README.md from the result files. `--check` writes nothing and fails where one is out of date.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is `ttft`, `serve` or `sessions`, or the path
of a result file without its ending (`eval/results/policies`), whose ratios are then listed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
MARK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
ARMS = {
    "full_vision_cold": "full prefill, vision tower included",
    "full_vision_warm": "full prefill, image features at hand",
    "cold": "first sight: compiled and stored, then refreshed",
    "warm": "warm: reused, 10 % refreshed",
    "reuse": "warm: reused as it is (r = 0)",
    "one_image_default_prompt": "one image behind the default prompt (exact)",
}

WAYS = {
    "chains": "chains and entries, some idle time",
    "chains_busy": "chains and entries, no idle time",
    "entries": "entries only",
    "full_chains": "full prefill with chains",
    "full": "full prefill",
}


def main() -> int:
    text = README.read_text()
    written = MARK.sub(lambda found: found[1] + table(found[2]) + found[3], text)
    if "--check" in sys.argv[1:]:
        if written != text:
            print(
                "README.md: a table does not match its results; run: python -m benchmarks.tables",
                file=sys.stderr,
            )
        return int(written != text)
    README.write_text(written)
    return 0


def table(name: str) -> str:
    own = {"ttft": ttft, "serve": serve, "sessions": sessions}
    path = ROOT / f"{f'benchmarks/results/{name}' if name in own else name}.json"
    if not path.exists():
        return "Not measured yet.\n"
    result = json.loads(path.read_text())
    return own.get(name, ratios)(result) + "\n" + origin(result)


def ttft(result: dict[str, Any]) -> str:
    figures = next(value for key, value in result["figures"].items() if key.endswith("_images"))
    seconds = {name: spread["median"] for name, spread in figures["engine_ttft_seconds"].items()}
    work = figures["work"]
    rows = ["| request | TTFT | against full prefill | GFLOP |", "|---|---:|---:|---:|"]
    for arm, title in ARMS.items():
        gflop = f"{work[arm]['counted_gflop']:,.0f}" if arm in work else ""
        ratio = "" if arm.startswith("one_image") else f"{seconds['full_vision_warm'] / seconds[arm]:.1f}x"
        rows.append(f"| {title} | {milliseconds(seconds[arm])} | {ratio} | {gflop} |")
    if "http_ttft_seconds" in figures:
        http = {key: spread["median"] for key, spread in figures["http_ttft_seconds"].items()}
        rows += over_http(http, seconds["full_vision_cold"] - seconds["full_vision_warm"])
    return "\n".join(rows) + "\n"


def over_http(http: dict[str, float], tower: float) -> list[str]:
    """`tower` seconds of the full prefill go to the vision tower, which a warm request does not run."""
    full, warm = http["full"], http["warm"]
    against = f"{full / warm:.1f}x, without the tower {(full - tower) / warm:.1f}x"
    return [
        f"| full prefill over HTTP, vision tower included | {milliseconds(full)} | | |",
        f"| warm, over HTTP | {milliseconds(warm)} | {against} | |",
    ]


def serve(result: dict[str, Any]) -> str:
    """Loads of the shipped model, each with none, one and both pages of a request in the store."""
    head = (
        "| users | pages known | requests/s | tokens/s | TTFT p50 / p99 | between tokens p50 / p99 | errors |"
    )
    rows = [head, "|---:|---:|---:|---:|---:|---:|---:|"]
    for load, rounds in result["figures"]["page-reader"]["rounds"].items():
        for hits, found in rounds.items():
            rates = f"{found['requests_per_second']:.1f} | {found['tokens_per_second']:.0f}"
            times = f"{_spread(found['ttft_ms'])} | {_spread(found['itl_ms'])}"
            rows.append(
                f"| {load.split('_')[0]} | {hits.split('_')[0]} % | {rates} | {times} | {found['errors']} |"
            )
    return "\n".join(rows) + "\n"


def sessions(result: dict[str, Any]) -> str:
    """Ways to serve the same users: times to the first token, arithmetic, where the tokens of prompts are from."""
    rows = [
        "| served | TTFT p50 / p99 | GFLOP | from chains | reused | computed or refreshed |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for way, parts in result["figures"].items():
        found = parts["all"]
        origins = found["origins"]
        shares = (
            origins["chained_exact"] + origins["chained_refreshed"],
            origins["reused"],
            origins["refreshed"] + origins["computed"],
        )
        cells = " | ".join(f"{100 * share:.0f} %" for share in shares)
        rows.append(f"| {WAYS[way]} | {_spread(found['ttft_ms'])} | {found['gflop']:.1f} | {cells} |")
    return "\n".join(rows) + "\n"


def _spread(found: dict[str, float]) -> str:
    return f"{found['p50']:,.0f} / {found['p99']:,.0f} ms"


def ratios(result: dict[str, Any]) -> str:
    rows = [f"| `{name}` | {value:.3g} |" for name, value in result["ratios"].items()]
    return "\n".join(["| ratio | value |", "|---|---:|", *rows]) + "\n"


def origin(result: dict[str, Any]) -> str:
    machine = result["machine"]
    place = machine.get("accelerator") or f"{machine['cpu']}, {machine['cores']} cores"
    return f"Measured on {place}, {result['date'][:10]}, commit {result['commit'][:8]}.\n"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
