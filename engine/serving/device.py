"""The device that a model runs on, and how much it holds."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from engine.errors import UnsupportedModel


def pick_device(name: str) -> str:
    """The device that a setting means; "auto" is the accelerator where there is one. Raises `UnsupportedModel` for one
    that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if int(number or 0) < _devices(kind):
        return name
    why = " (this torch is a build for the CPU)" if kind == "cuda" and torch.version.cuda is None else ""
    raise UnsupportedModel(f"CONDUIT_DEVICE: there is no {name} here{why}")


def _devices(kind: str) -> int:
    if kind == "cuda":
        return torch.cuda.device_count()
    return int(torch.backends.mps.is_available()) if kind == "mps" else 1


def free_bytes(device: str) -> int:
    """Bytes that a model may take on `device`: what is free on an accelerator, all that this process may have of a
    host's memory, which the system hands out as it is used."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return host_bytes()


def host_bytes() -> int:
    """Memory of this machine, or of the container where that has less (control groups, both versions)."""
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            known.append(int(Path(limit).read_text()))
    return min(known)
