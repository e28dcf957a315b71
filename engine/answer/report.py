"""What a request reused, as it is told to the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.passes.refresh import Prefilled
from engine.policies.choice import Choice
from engine.prompt.layout import ImageSpan, PromptLayout
from engine.reports import ImageReport, KvReport, Usage
from store.records.entry import ImageKV
from store.tiered import Fetched

# Where an image comes from whose rows an exact chain holds.
CHAIN_TIER = "chain"


@dataclass(frozen=True, slots=True)
class Chained:
    """What a chain had of a prompt: visual tokens of each span, and tokens of the whole prompt by their quality."""

    spans: tuple[int, ...]
    exact: int
    refreshed: int


def kv_report(
    choice: Choice,
    layout: PromptLayout,
    prefilled: Prefilled,
    fetched: Sequence[Fetched[ImageKV] | None],
    keys: Sequence[str],
    chained: Chained,
) -> KvReport:
    """`fetched` and `keys` span by span, in prompt order; None where the store was not asked (policy `full`, and images
    in an exact chain)."""
    each = [
        image_report(span, found, key, refreshed, exact, tokens, span.stop <= chained.exact)
        for span, found, key, refreshed, exact, tokens in zip(
            layout.spans, fetched, keys, prefilled.refreshed, prefilled.exact, chained.spans, strict=True
        )
    ]
    firsts = [keys.index(key) for key in keys]
    images = tuple(
        replace(image, same_as=first) if first < place else image
        for place, (image, first) in enumerate(zip(each, firsts, strict=True))
    )
    refreshed = sum(prefilled.refreshed)
    reused = sum(i.tokens - i.refreshed - i.chained for i in images if i.outcome == "hit")
    return KvReport(
        choice.policy.name,
        choice.ratio,
        images,
        layout.visual_tokens,
        reused,
        layout.visual_tokens - reused - refreshed - sum(chained.spans),
        refreshed,
        choice.fallback,
        sum(chained.spans),
        chained.exact,
        chained.refreshed,
        turns_reused=len(prefilled.turns),
    )


def image_report(
    span: ImageSpan,
    fetched: Fetched[ImageKV] | None,
    key: str,
    refreshed: int,
    exact: bool,
    chained: int,
    in_head: bool,
) -> ImageReport:
    if in_head:
        return ImageReport(key, "hit", "", CHAIN_TIER, 0, 0.0, 0.0, span.tokens, refreshed, exact, chained)
    if fetched is None:
        return ImageReport(key, "bypass", "policy", None, 0, 0.0, 0.0, span.tokens, refreshed, exact)
    return ImageReport(
        key,
        fetched.outcome,
        fetched.reason,
        fetched.tier,
        fetched.bytes,
        fetched.load_seconds,
        fetched.compile_seconds,
        span.tokens,
        refreshed,
        exact,
        chained,
    )


def usage(layout: PromptLayout, report: KvReport, completion_tokens: int, stores: bool) -> Usage:
    """Cached are the tokens reused, text among them, and those that a chain had; written are those of images compiled
    and kept."""
    cached = report.reused + report.turns_reused + report.chained_exact + report.chained_refreshed
    written = sum({i.key: i.tokens for i in report.images if i.outcome not in ("hit", "bypass")}.values())
    return Usage(layout.length, completion_tokens, layout.visual_tokens, cached, written if stores else 0)
