"""What the demo asks: the same page images cold, with another question, behind another prompt, after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demo.pages import PAGE_PX, Page, draw_pages, encode
from demo.questions import Question, ask_list, ask_value, draw_reading

SEED = 7
PAGES = 4
# Pages of (c), (d) and (e) in another order than those of (a) and (b).
REORDERED = (2, 0, 3, 1)


@dataclass(frozen=True, slots=True)
class Step:
    """One request. `restart`: the service is stopped and started again before it."""

    name: str
    title: str
    pages: tuple[Page, ...]
    system: str | None
    question: Question
    policy: str | None = None
    restart: bool = False


def steps() -> list[Step]:
    """The five requests, always the same ones."""
    rng = np.random.default_rng(SEED)
    pages = draw_pages(rng, PAGES, filled=(6, 8), shared_keys=True)
    moved = tuple(pages[i] for i in REORDERED)
    system, reading = draw_reading(rng)
    keys = [cell.key for cell in pages[0].cells]
    first = ask_value(rng, pages, {}, 1, keys[2])
    second = ask_list(rng, pages, {}, 2)
    third = ask_value(rng, moved, reading, 3, keys[0])
    fourth = ask_value(rng, moved, reading, 0, keys[-1])
    return [
        Step("a", "cold: the store is empty", pages, None, first),
        Step("b", "another question about the same pages", pages, None, second),
        Step("c", "another system prompt, the pages in another order", moved, system, third),
        Step("d", "after a restart of the service", moved, system, fourth, restart=True),
        Step("e", "policy full: the store is not used", moved, system, third, policy="full"),
    ]


def request(step: Step, base_url: str, edge: int = PAGE_PX, max_tokens: int = 64) -> dict[str, Any]:
    """The body of the step's request; the pages are `edge` pixels wide and high."""
    images = [
        {"type": "image_url", "image_url": {"url": url}} for url in page_urls(step.pages, base_url, edge)
    ]
    messages: list[dict[str, Any]] = []
    if step.system is not None:
        messages.append({"role": "system", "content": step.system})
    messages.append({"role": "user", "content": [*images, {"type": "text", "text": step.question.text}]})
    body: dict[str, Any] = {"messages": messages, "max_tokens": max_tokens}
    if step.policy is not None:
        body["cache"] = {"policy": step.policy, "chain": "off"}
    return body


def under_full_prefill(body: dict[str, Any]) -> dict[str, Any]:
    """The same request with every token computed, whatever is kept."""
    return {**body, "cache": {"policy": "full", "chain": "off"}}


def page_urls(pages: Sequence[Page], base_url: str, edge: int) -> list[str]:
    size = "" if edge == PAGE_PX else f"?edge={edge}"
    return [f"{base_url}/demo/pages/{encode(page)}.png{size}" for page in pages]
