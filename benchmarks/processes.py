"""What the system says of a process and those below it: resident memory and processor time. Linux only."""

from __future__ import annotations

import os
from pathlib import Path


def resident(pid: int) -> int:
    """Bytes of resident memory of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    """Seconds of processor time that one process has used, its threads included."""
    # The name in parentheses may hold spaces; utime and stime are fields 14 and 15 of the line.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> tuple[int, ...]:
    """Processes that the main thread of `pid` started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return tuple(found)


def worker_of(service: int) -> int:
    """The process of a service that runs the model; its other children decode pictures. Raises ValueError where there
    is none at the moment."""
    (worker,) = [child for child in children(service) if b"worker" in command_of(child)]
    return worker


def command_of(pid: int) -> list[bytes]:
    """The words that a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
