"""The composition root: settings -> store -> worker -> app -> uvicorn. The only module that knows every layer."""

from __future__ import annotations

import logging
import os
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from engine.errors import EngineError
from engine.load import ModelSettings, load_runtime
from engine.runtime import Defaults, Runtime
from engine.scheduler import Limits
from engine.transport.inprocess import InProcessClient
from engine.worker import Worker
from service.app import create_app
from service.logs import configure_logging
from service.settings import Settings, SettingsError, load_settings
from store.errors import StoreError
from store.open import open_store
from store.settings import StoreSettings

log = logging.getLogger("conduit")


class DrainingServer(uvicorn.Server):
    """Refuses new requests from the first signal on, while running ones are given their time."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.services.admission.draining = True
        super().handle_exit(sig, frame)


def model_settings(settings: Settings) -> ModelSettings:
    preset = {} if settings.policy_preset is None else {"preset": settings.policy_preset}
    ratio = Defaults().refresh_ratio if settings.refresh_ratio is None else settings.refresh_ratio
    return ModelSettings(
        path=settings.model,
        name=settings.model_name,
        revision=settings.revision,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        defaults=Defaults(settings.policy, ratio, preset),
    )


def store_settings(settings: Settings) -> StoreSettings:
    return StoreSettings(
        path=settings.store_path,
        memory_bytes=settings.memory_bytes,
        disk_bytes=settings.disk_bytes,
        decoded_bytes=settings.decoded_bytes,
        codec=settings.codec,
    )


def start_client(settings: Settings) -> InProcessClient:
    """Load the model, open the store and start a worker in this process."""
    stored = store_settings(settings)
    store = open_store(stored)
    runtime: Runtime = load_runtime(model_settings(settings), store, stored.codec)
    worker = Worker(runtime, Limits(waiting=settings.max_queue))
    worker.start()
    return InProcessClient(worker, store, runtime.info())


def build_app(settings: Settings) -> FastAPI:
    if not settings.demo:
        return create_app(settings, start_client(settings))
    from demo.pages_app import router as demo_pages

    return create_app(settings, start_client(settings), extra_routers=[demo_pages])


def main() -> int:
    try:
        settings = load_settings(os.environ)
        configure_logging(settings.log_level, settings.log_format)
        app = build_app(settings)
    except (SettingsError, EngineError, StoreError) as error:
        print(f"conduit cannot start: {error}", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(settings.drain_timeout) + 1,
    )
    DrainingServer(config, app).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
