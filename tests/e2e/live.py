"""The real thing inside the test process: real worker, real LMDB, real uvicorn, one socket away from the client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import httpx

from demo.asking import Answer, ask
from demo.pages import Page, encode
from demo.pages_app import router as demo_pages
from demo.questions import Example
from engine.serving.build import Started, start_worker
from engine.transport.inprocess import InProcessClient
from service.__main__ import model_settings, store_settings, worker_limits
from service.app import create_app
from service.settings import Settings
from store.settings import StoreSettings
from tests.service.serving import serving

TIMEOUT = 120.0
PATIENT = httpx.Timeout(TIMEOUT)
ANSWER_TOKENS = 10


class Live:
    """The service over the store in `folder`. `store` changes what the store is opened with; `settings` are the
    service's. Use as a context; `restart` begins anew over the same store."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        store: Callable[[StoreSettings], StoreSettings] = lambda settings: settings,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self._store = store
        self._settings = Settings(
            **{
                "model": str(model),
                "store_path": folder,
                "threads": 1,
                "demo": True,
                "worker": "thread",
                "drain_timeout": 5.0,
                "allowed_private_hosts": ("127.0.0.1",),
                **settings,
            }
        )
        self._stack = ExitStack()
        self.started: Started
        self.api: httpx.Client
        self.url = ""

    def __enter__(self) -> Self:
        settings = self._settings
        started = start_worker(
            model_settings(settings), self._store(store_settings(settings)), worker_limits(settings)
        )
        self.started = started
        client = InProcessClient(started.worker, started.store.entries, started.desk, started.info)
        app = create_app(settings, client, extra_routers=[demo_pages])
        self.url = self._stack.enter_context(serving(app)).url
        self.api = self._stack.enter_context(
            httpx.Client(base_url=self.url, timeout=PATIENT, trust_env=False)
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; safe to call twice."""
        self._stack.close()

    def restart(self, **store: Any) -> None:
        """Stop and start over the same store, from now on opened with `store` changed."""
        self.close()
        self._stack = ExitStack()
        before = self._store
        self._store = lambda settings: replace(before(settings), **store)
        self.__enter__()

    def ask(self, example: Example, max_tokens: int = ANSWER_TOKENS, **cache: Any) -> Answer:
        return ask(self.api, {**body(example, self.url, cache), "max_tokens": max_tokens})

    def flush(self) -> None:
        """Wait until everything is written."""
        self.started.store.entries.flush()

    def entry_keys(self, kind: str = "image") -> set[str]:
        query = {"limit": 1000, "kind": kind}
        entries = self.api.get("/v1/cache/entries", params=query).json()["entries"]
        return {entry["key"] for entry in entries}

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get("/v1/cache/stats").json()
        return found

    def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get("/readyz").json()
        return found


def body(example: Example, base_url: str, cache: dict[str, Any]) -> dict[str, Any]:
    messages = example.messages([page_url(base_url, page) for page in example.pages])
    return {"messages": messages, "max_tokens": ANSWER_TOKENS, "cache": cache}


def page_url(base_url: str, page: Page, edge: int | None = None) -> str:
    return f"{base_url}/demo/pages/{encode(page)}.png" + ("" if edge is None else f"?edge={edge}")


def tokens(answer: Answer) -> tuple[str, int]:
    """What must not change: the text, and how many tokens it took."""
    return answer.text, answer.usage["completion_tokens"]


def tiers(answer: Answer) -> set[tuple[str, str | None]]:
    return {(image["outcome"], image["tier"]) for image in answer.report["images"]}
