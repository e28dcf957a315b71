"""Where the time of a prefill goes: phase by phase, and by kind of work, beside the arithmetic of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from engine.passes.forward import Work
from engine.passes.refresh import Prefill
from engine.policies.base import SelectingPolicy, budget

if TYPE_CHECKING:
    from benchmarks.ttft_engine import EngineArms

ROUNDS = 3
# By parts of the operators' names, the first that fits. What is left is norms, activations, residuals, rotations.
KINDS = {
    "linear layers": ("addmm", "aten::mm", "linear"),
    "attention": ("attention", "bmm", "softmax", "lerp", "sigmoid"),
    "moving data": ("copy", "cat", "index", "clone", "fill", "zero", "select", "slice", "as_strided"),
}
REST = "norms, activations, rotation"


def phases(arms: EngineArms) -> dict[str, dict[str, float]]:
    """Medians of the warm request's steps, taken one by one: {"restore": {"seconds", "gflop"}, ...}."""
    runs = [_one_by_one(arms) for _ in range(ROUNDS)]
    return {
        name: {key: statistics.median(run[name][key] for run in runs) for key in ("seconds", "gflop")}
        for name in runs[0]
    }


def _one_by_one(arms: EngineArms) -> dict[str, dict[str, float]]:
    runtime, layout, policy = arms.runtime, arms.layout, arms.policy
    assert isinstance(policy, SelectingPolicy)
    entries, work = arms.entries(), Work()
    kv = runtime.pool.take(layout.length + len(layout.query.ids))
    clock = _Clock(runtime.family.device, work)
    prefill = clock.run("set up", lambda: Prefill(runtime.family, kv, layout, arms.features, work))
    candidates = clock.run("restore", lambda: prefill.restore(entries, policy, arms.ratio))
    plan = policy.plan(runtime.family.shape, len(layout.spans))
    assert plan is not None
    count = budget(arms.ratio, len(candidates))
    probe = clock.run("score", lambda: prefill.prober.probe(candidates, plan, count))
    chosen = clock.run("select", lambda: candidates.slots[policy.select(probe, count).cpu().numpy()])
    clock.run("refresh", lambda: prefill.refresh(candidates, chosen, policy.refresh_text))
    runtime.pool.give_back(kv)
    return clock.phases


class _Clock:
    def __init__(self, device: torch.device, work: Work) -> None:
        self._device, self._work = device, work
        self.phases: dict[str, dict[str, float]] = {}

    def run(self, name: str, step: Callable[[], Any]) -> Any:
        self._wait()
        flops, began = self._work.flops, time.perf_counter()
        result = step()
        self._wait()
        taken = time.perf_counter() - began
        self.phases[name] = {"seconds": taken, "gflop": (self._work.flops - flops) / 1e9}
        return result

    def _wait(self) -> None:
        # Work on an accelerator is only launched by a call: a clock read without waiting says nothing.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def time_by_kind(arms: EngineArms) -> dict[str, dict[str, float]]:
    """Seconds of full prefill and of the warm request by kind of work, and how many times less the latter needs."""
    warm_arm = arms.all()["warm"]
    full, warm = _kinds(arms, arms.full_with_features), _kinds(arms, warm_arm)
    return {
        kind: {"full": full[kind], "warm": warm[kind], "ratio": full[kind] / max(warm[kind], 1e-9)}
        for kind in [*KINDS, REST]
    }


def _kinds(arms: EngineArms, arm: Callable[[], object]) -> dict[str, float]:
    on_gpu = arms.runtime.family.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, acc_events=True) as profiled:
        arm()
    seconds = dict.fromkeys([*KINDS, REST], 0.0)
    for event in profiled.key_averages():
        if event.device_type.name != "CPU":
            continue  # a kernel, whose time its operator has too
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        seconds[_kind(event.key)] += microseconds / 1e6
    return seconds


def _kind(operator: str) -> str:
    for kind, parts in KINDS.items():
        if any(part in operator for part in parts):
            return kind
    return REST
