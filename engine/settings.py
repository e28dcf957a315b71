"""What an operator decides about the engine. Torch-free: settings cross to a worker in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Defaults:
    """What applies where a request says nothing; `options` where it names no policy of its own either. `refine`: prompt
    rows that a decode step computes anew (0: none)."""

    policy: str = "conduit"
    refresh_ratio: float = 0.10
    options: Mapping[str, object] = field(default_factory=dict)
    refine: int = 0
    chain: Literal["auto", "exact", "off"] = "auto"
    turns: Literal["compute", "reuse"] = "compute"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which checkpoint to serve and how. `path` is a folder or a hub name, `name` what requests call it (default: the
    last part of `path`). `dtype` and `device` "auto" take what the checkpoint says and the best device there is.
    `system` replaces the chat template's default system prompt."""

    path: str
    name: str | None = None
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    system: str | None = None
    namespace: str = "default"
    defaults: Defaults = field(default_factory=Defaults)


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests that may queue and that may hold KV at a time, and the bytes of KV that all of them may hold (None: a
    share of what the device has, see `engine.serving.build`). `refined_rows`: prompt rows that one decode round
    computes anew for all of its requests together; one that asks for more has a round with those that ask for none.
    `chain_bytes` of the KV at most hold chains, as long as no request needs them (0: none are kept).
    `refine_idle`: a chain that is not exact is finished in idle time if it was used again, or for so many seconds after
    its use (0: never)."""

    waiting: int = 256
    running: int = 8
    bytes: int | None = None
    refined_rows: int = 512
    chain_bytes: int = 0
    refine_idle: float = 0.0
