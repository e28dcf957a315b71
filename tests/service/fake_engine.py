"""An `EngineClient` that plays a script, so that the HTTP side is tested without a model.

It keeps count of what an engine would leak: submitted, open, aborted and finished requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncGenerator, Callable, Sequence

from engine.errors import InvalidPrompt
from engine.messages import (
    Accepted,
    EngineInfo,
    EngineStatus,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    TextDelta,
    TextPart,
)
from engine.reports import Explanation, ImageOutcome, ImageReport, KvReport, Timings, Tokenized, Usage
from store.types import (
    EntryFilter,
    EntryInfo,
    EntryPage,
    EvictResult,
    Held,
    QuotaInfo,
    StoreStats,
    TierStats,
    VerifyProgress,
)

INFO = EngineInfo(
    model="models/test-reader",
    max_context=4096,
    policies=("conduit", "full", "reuse"),
    default_policy="conduit",
    default_refresh_ratio=0.1,
    device="cpu",
    dtype="float32",
)
IMAGE_TOKENS = 36

Step = Event | float | threading.Event | Exception | Callable[[], Event]
"""What a script holds: an event to hand out, seconds or a flag to wait for, an exception to raise, or a call that
makes an event."""
Script = Callable[[GenerateRequest], Sequence[Step]]


def accepted(request: GenerateRequest) -> Accepted:
    return Accepted(request.id, 12 + IMAGE_TOKENS * len(request.images), IMAGE_TOKENS * len(request.images))


def finished(request: GenerateRequest, words: int, seen: Sequence[bytes] = ()) -> Finished:
    """The end of a request, with a hit for each image whose digest is in `seen`."""
    bypass = request.cache.mode == "bypass"
    explain = request.cache.explain
    reports = tuple(
        _image_report(image.digest, image.digest in seen, bypass, explain) for image in request.images
    )
    reused = sum(report.tokens - report.refreshed for report in reports if report.outcome == "hit")
    visual, refreshed = IMAGE_TOKENS * len(reports), sum(report.refreshed for report in reports)
    usage = Usage(
        prompt_tokens=12 + visual,
        completion_tokens=words,
        image_tokens=visual,
        cached_tokens=reused,
        cache_write_tokens=IMAGE_TOKENS * sum(report.outcome == "miss" for report in reports),
    )
    report = KvReport(
        policy=request.cache.policy or INFO.default_policy,
        refresh_ratio=0.1 if request.cache.refresh_ratio is None else request.cache.refresh_ratio,
        images=reports,
        visual_tokens=visual,
        reused=reused,
        compiled=visual - reused - refreshed,
        refreshed=refreshed,
    )
    return Finished(request.id, "stop", usage, report, Timings(0.001, 0.002, 0.003, 0.004))


def _image_report(digest: bytes, hit: bool, bypass: bool, explain: bool) -> ImageReport:
    outcome: ImageOutcome = "bypass" if bypass else "hit" if hit else "miss"
    return ImageReport(
        key=digest.hex(),
        outcome=outcome,
        reason="" if hit else "absent",
        tier="memory" if hit else None,
        bytes=4096,
        load_seconds=0.001 if hit else 0.0,
        compile_seconds=0.0 if hit else 0.01,
        tokens=IMAGE_TOKENS,
        refreshed=4,
        exact=False,
        explained=_explanation(hit) if explain else None,
    )


def _explanation(hit: bool) -> Explanation:
    """Four refreshed tokens in the first row of 6 x 6."""
    fresh, others = (2,) * 4, (0 if hit else 1,) * (IMAGE_TOKENS - 4)
    drift = (0.5,) * 4 + (None,) * (IMAGE_TOKENS - 4)
    scores = tuple(round(2.5 - i / 12, 4) for i in range(IMAGE_TOKENS))
    return Explanation((6, 6), bytes(fresh + others), scores, drift, None)


def says(text: str, pause: float = 0.0) -> Script:
    """Accept, then `text` word by word."""

    def script(request: GenerateRequest) -> list[Step]:
        words = text.split(" ")
        steps: list[Step] = [accepted(request)]
        for i, word in enumerate(words):
            steps += [pause, TextDelta(request.id, word if i == 0 else f" {word}")]
        return [*steps, finished(request, len(words))]

    return script


def fails(code: str, message: str = "It went wrong.", image: int | None = None) -> Script:
    """Refuse before anything is accepted."""
    return lambda request: [Failed(request.id, code, message, image)]


class FakeEngine:
    """Plays `script` for every request; `seen` makes later requests with the same image a hit for that
    tenant."""

    def __init__(self) -> None:
        self.info = INFO
        self.cache = FakeCache()
        self.reset()

    def reset(self) -> None:
        """As new, for the next test on the same server."""
        self.script: Script = says("The total is 42.")
        self.cache.held.clear()
        self.cache.limits.clear()
        self.cache.fault = None
        self.cache.degraded = ()
        self.cache.scrub_pause = 0.0
        self.cache.scrub_fault = None
        self.cache.most_scrubs = 0
        self.requests: list[GenerateRequest] = []
        self.remember = True
        self.submitted = 0
        self.seen: set[tuple[str, bytes]] = set()
        self.open = 0
        self.aborted = 0
        self.closed = False
        self.stopping = asyncio.Event()
        self.state = EngineStatus(ready=True, reasons=(), progress_seconds=0.0, waiting=0, running=0)

    @property
    def tokens(self) -> FakeTokens:
        return FakeTokens()

    def status(self) -> EngineStatus:
        return self.state

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.submitted += 1
        if self.remember:
            self.requests.append(request)
        self.open += 1
        ended = False
        try:
            for step in self._steps(request):
                if isinstance(step, float | int):
                    if await self._stopped_during(step):
                        ended = True
                        yield Failed(request.id, "engine_stopped", "The service is shutting down.")
                        return
                elif isinstance(step, threading.Event):
                    while not step.is_set():
                        await asyncio.sleep(0.01)
                elif isinstance(step, Exception):
                    raise step
                else:
                    event = step() if callable(step) else step
                    ended = isinstance(event, Finished | Failed)
                    yield event
        finally:
            self.open -= 1
            self.aborted += not ended

    def _steps(self, request: GenerateRequest) -> list[Step]:
        hits = [image.digest for image in request.images if (request.tenant, image.digest) in self.seen]
        self.seen |= {(request.tenant, image.digest) for image in request.images}
        return [
            dataclasses.replace(
                finished(request, step.usage.completion_tokens, hits),
                logprobs=step.logprobs,
                reason=step.reason,
                index=step.index,
                stop=step.stop,
            )
            if isinstance(step, Finished)
            else step
            for step in self.script(request)
        ]

    async def _stopped_during(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def close(self, drain_seconds: float) -> None:
        """End what still runs after `drain_seconds`."""
        end = asyncio.get_running_loop().time() + drain_seconds
        while self.open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        self.stopping.set()
        self.closed = True


class FakeTokens:
    """A token a word, `IMAGE_TOKENS` an image; ids below 1000 are read back as themselves."""

    async def tokenize(self, request: GenerateRequest) -> Tokenized:
        words = sum(
            len(part.text.split()) for m in request.messages for part in m.parts if isinstance(part, TextPart)
        )
        images = tuple(IMAGE_TOKENS for _ in request.images)
        return Tokenized(tuple(range(words + sum(images))), images)

    async def detokenize(self, ids: Sequence[int]) -> str:
        if any(token >= 1000 for token in ids):
            raise InvalidPrompt("tokens: there is no token of that number; the model has 1000")
        return " ".join(map(str, ids))


class FakeCache:
    """A `CacheAdmin` over a dict."""

    def __init__(self) -> None:
        self.held: dict[str, EntryInfo] = {}
        self.limits: dict[str, int] = {}
        self.fault: Exception | None = None
        self.scrub_pause = 0.0
        self.degraded: tuple[str, ...] = ()
        self.scrub_fault: Exception | None = None
        self.scrubs = 0
        self.most_scrubs = 0

    def put(self, key: str, **changes: object) -> EntryInfo:
        entry = EntryInfo(
            key=key,
            kind="image",
            namespace="",
            tenant="default",
            model="test-reader",
            codec="raw",
            tokens=IMAGE_TOKENS,
            width=96,
            height=96,
            bytes=4096,
            tiers=("memory", "disk"),
            created=1.0,
            last_used=2.0,
            hits=3,
            leased=False,
        )
        self.held[key] = dataclasses.replace(entry, **changes)  # type: ignore[arg-type]
        return self.held[key]

    async def stats(self) -> StoreStats:
        if self.fault is not None:
            raise self.fault
        tier = TierStats(
            "memory", True, 1, 10, 12, 100, 5, {"absent": 2}, {"budget": 1}, {}, 50, 60, 0.1, 0.2
        )
        return StoreStats(
            tiers=(tier, dataclasses.replace(tier, name="disk")),
            decoded=dataclasses.replace(tier, name="decoded"),
            compiles=2,
            joined=1,
            write_queue=0,
            write_queue_bytes=0,
            writes_dropped={},
            leases=0,
            degraded=self.degraded,
            chains_by_tier={"chain": {"refreshed": Held(1, 10)}, "disk": {"exact": Held(2, 30)}},
        )

    async def entries(self, select: EntryFilter, cursor: str | None, limit: int) -> EntryPage:
        matching = [entry for key, entry in sorted(self.held.items()) if _matches(entry, select)]
        rest = [entry for entry in matching if cursor is None or entry.key > cursor]
        page = tuple(rest[:limit])
        return EntryPage(page, page[-1].key if len(rest) > limit else None)

    async def entry(self, key: str) -> EntryInfo | None:
        return self.held.get(key)

    async def delete(self, key: str) -> bool:
        return self.held.pop(key, None) is not None

    async def evict(self, select: EntryFilter, max_bytes: int | None, dry_run: bool) -> EvictResult:
        matching = [entry for entry in self.held.values() if _matches(entry, select)]
        chosen = [entry for entry in matching if not entry.leased]
        if not dry_run:
            for entry in chosen:
                del self.held[entry.key]
        keys, skipped = tuple(entry.key for entry in chosen), len(matching) - len(chosen)
        return EvictResult(keys, sum(entry.bytes for entry in chosen), skipped, dry_run)

    async def clear(self, tenant: str | None, include_pinned: bool) -> EvictResult:
        pinned = {key for key in self.held if self.held[key].pinned and not include_pinned}
        kept = {key: self.held.pop(key) for key in pinned}
        result = await self.evict(EntryFilter(tenant=tenant), None, False)
        self.held.update(kept)
        return dataclasses.replace(result, skipped_pinned=len(kept))

    async def lookup(self, tenant: str, digest: bytes, width: int, height: int) -> EntryInfo | None:
        entry = self.held.get(digest.hex())
        return entry if entry is not None and entry.tenant == tenant else None

    async def pin(self, key: str, seconds: float | None) -> bool:
        if key in self.held:
            self.put(key, pinned="hard" if seconds is None else "soft")
        return key in self.held

    async def unpin(self, key: str) -> bool:
        found = key in self.held and self.held[key].pinned != ""
        if found:
            self.put(key)
        return found

    async def quotas(self) -> tuple[QuotaInfo, ...]:
        return tuple(QuotaInfo(tenant, limit, 0) for tenant, limit in self.limits.items())

    async def set_quota(self, tenant: str, nbytes: int | None) -> None:
        if self.fault is not None:
            raise self.fault
        self.limits.pop(tenant, None)
        if nbytes is not None:
            self.limits[tenant] = nbytes

    async def verify(self) -> AsyncGenerator[VerifyProgress, None]:
        self.scrubs += 1
        self.most_scrubs = max(self.scrubs, self.most_scrubs)
        try:
            for i in range(1, len(self.held) + 1):
                await asyncio.sleep(self.scrub_pause)
                yield VerifyProgress("memory", i, len(self.held), 4096 * i, {})
            if self.scrub_fault is not None:
                raise self.scrub_fault
            yield VerifyProgress("memory", len(self.held), len(self.held), 0, {"corrupt": 1}, done=True)
        finally:
            self.scrubs -= 1

    async def compact(self) -> dict[str, int | str]:
        return {"memory": 0, "disk": "in use by another process"}


def _matches(entry: EntryInfo, select: EntryFilter) -> bool:
    tier = select.tier is None or select.tier in entry.tiers
    same = select.tenant in (None, entry.tenant) and select.kind in (None, entry.kind)
    return tier and same and (select.min_bytes or 0) <= entry.bytes
