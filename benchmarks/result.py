"""The result file of a benchmark or an evaluation: `results/<name>.json` beside the script that measured.

One shape for all of them, so that the README's tables are generated (`benchmarks.tables`) and figures can be compared
between commits and machines. A script that could not measure writes no file and exits non-zero: `NotMeasured`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class NotMeasured(Exception):
    """A figure that was to be measured could not be, or is no number."""


def write_result(
    script: str | Path,
    settings: Mapping[str, Any],
    ratios: Mapping[str, float],
    figures: Mapping[str, Any],
) -> Path:
    """Write `results/<script name>.json` beside `script` (pass `__file__`) and return its path.

    ratios: what is compared between commits and machines, plain numbers. figures: everything else that was measured.
    Raises `NotMeasured` where a ratio is not finite or there is none.
    """
    unusable = [name for name, value in ratios.items() if not math.isfinite(value)]
    if unusable or not ratios:
        raise NotMeasured(f"no usable ratio: {', '.join(unusable) or 'there is none'}")
    result = {
        "machine": machine(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": dict(settings),
        "ratios": dict(ratios),
        "figures": dict(figures),
    }
    source = Path(script)
    path = source.parent / "results" / f"{source.stem}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    return path


def machine() -> dict[str, Any]:
    """What figures depend on: processor, cores, memory in GiB, accelerator, versions. No host names."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "accelerator": _accelerator(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "transformers")},
    }


def commit() -> str:
    """The checkout's commit, with `+` where files differ from it; `unknown` outside a repository."""
    try:
        found = _git("rev-parse", "HEAD")
        return found + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _accelerator() -> str | None:
    # Asked of torch only where something has loaded it already: a store benchmark must not wait for it.
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
