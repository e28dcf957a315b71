"""What a request reused, as it is told to the user."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import ImageReport, KvReport, Usage
from engine.passes.refresh import Prefilled
from engine.policies.choice import Choice
from engine.prompt.layout import ImageSpan, PromptLayout
from store.records.entry import ImageKV
from store.tiered import Fetched


def kv_report(
    choice: Choice,
    layout: PromptLayout,
    prefilled: Prefilled,
    fetched: Sequence[Fetched[ImageKV] | None],
    keys: Sequence[str],
) -> KvReport:
    """`fetched` and `keys` span by span, in prompt order; None where the store was not asked (policy `full`)."""
    images = tuple(
        image_report(span, found, key, refreshed, exact)
        for span, found, key, refreshed, exact in zip(
            layout.spans, fetched, keys, prefilled.refreshed, prefilled.exact, strict=True
        )
    )
    refreshed = sum(prefilled.refreshed)
    reused = sum(image.tokens - image.refreshed for image in images if image.outcome == "hit")
    return KvReport(
        choice.policy.name,
        choice.ratio,
        images,
        layout.visual_tokens,
        reused,
        layout.visual_tokens - reused - refreshed,
        refreshed,
        choice.fallback,
    )


def image_report(
    span: ImageSpan, fetched: Fetched[ImageKV] | None, key: str, refreshed: int, exact: bool
) -> ImageReport:
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
    )


def usage(layout: PromptLayout, report: KvReport, completion_tokens: int, stores: bool) -> Usage:
    """Cached are the tokens reused; written are those of images compiled and kept."""
    written = sum({i.key: i.tokens for i in report.images if i.outcome not in ("hit", "bypass")}.values())
    return Usage(
        layout.length, completion_tokens, layout.visual_tokens, report.reused, written if stores else 0
    )
