"""What demo mode adds beside the routes of `demo.pages_app`: questions for the web page, about pages that the
service fetches from itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from demo.pages import Page, draw_pages, encode
from demo.questions import Question, ask_list, ask_value
from service.settings import Settings
from service.web.page import Sample

_SEED: Final = 3
_PAGES: Final = 4


def fetching_from_itself(settings: Settings) -> Settings:
    """`settings` under which the service may read its own pages as images."""
    own = (f"127.0.0.1:{settings.port}", f"localhost:{settings.port}")
    hosts = dict.fromkeys((*settings.allowed_private_hosts, *own))
    return settings.model_copy(update={"allowed_private_hosts": tuple(hosts)})


def demo_samples() -> list[Sample]:
    """Always the same pages, asked about in three ways: what the first question computes, the others
    reuse."""
    rng = np.random.default_rng(_SEED)
    pages = draw_pages(rng, _PAGES, filled=(6, 8), shared_keys=True)
    turned = pages[::-1]
    keys = [cell.key for cell in pages[0].cells]
    return [
        _sample("Four pages", pages, ask_value(rng, pages, {}, 1, keys[2])),
        _sample("The same pages, another question", pages, ask_list(rng, pages, {}, 2)),
        _sample("The same pages in another order", turned, ask_value(rng, turned, {}, 0, keys[-1])),
    ]


def _sample(title: str, pages: Sequence[Page], question: Question) -> Sample:
    return Sample(title, tuple(f"/demo/pages/{encode(page)}.png" for page in pages), question.text)
