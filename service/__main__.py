"""The composition root: settings -> store -> worker -> app -> uvicorn. The only module that knows every
layer."""

from __future__ import annotations

import sys
from contextlib import suppress

from fastapi import FastAPI

from engine.client import EngineClient
from engine.errors import EngineError
from engine.settings import Defaults, Limits, ModelSettings
from engine.tracing import configure as configure_tracing
from engine.transport.inprocess import InProcessClient
from engine.transport.process import ProcessClient
from engine.transport.wire import Launch
from service.app import create_app
from service.http.server import DrainingServer
from service.observability.logs import configure_logging
from service.settings import Settings, SettingsError, load_settings
from store.errors import StoreError
from store.settings import StoreSettings


def model_settings(settings: Settings) -> ModelSettings:
    ratio = Defaults().refresh_ratio if settings.refresh_ratio is None else settings.refresh_ratio
    return ModelSettings(
        path=settings.model,
        name=settings.model_name,
        revision=settings.revision,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        namespace=settings.namespace,
        defaults=Defaults(settings.policy, ratio, settings.policy_options, settings.refine),
    )


def store_settings(settings: Settings) -> StoreSettings:
    return StoreSettings(
        path=settings.store_path,
        memory_bytes=settings.memory_bytes,
        disk_bytes=settings.disk_bytes,
        decoded_bytes=settings.decoded_bytes,
        queue_bytes=settings.queue_bytes,
        codec=settings.codec,
        eviction=settings.eviction,
        persist_on=settings.persist_on,
        redis_url=None if settings.redis_url is None else str(settings.redis_url.get_secret_value()),
        redis_cluster=settings.redis_cluster,
        redis_bytes=settings.redis_bytes,
        redis_timeout=settings.redis_timeout,
    )


def start_client(settings: Settings) -> EngineClient:
    """Load the model and open the store, in a supervised process or on a thread of this one."""
    limits = Limits(settings.max_queue, settings.max_running, settings.kv_bytes)
    launch = Launch(model_settings(settings), store_settings(settings), limits, settings.shadow_share)
    if settings.worker == "process":
        command = [sys.executable, "-m", "service", "worker"]
        client = ProcessClient(command, launch, settings.stall_after, settings.upload_cache_bytes)
        client.start()
        return client
    from engine.serving.build import start_worker  # brings torch into this process

    started = start_worker(launch.model, launch.store, launch.limits, launch.shadow_share)
    return InProcessClient(started.worker, started.store.entries, started.desk, started.info)


def run_worker(descriptor: int) -> int:
    """The other end of `ProcessClient`: this program again, as the worker."""
    from engine.transport.child import serve_parent

    configure_process(load_settings(), "conduit-worker")
    return serve_parent(descriptor)


def configure_process(settings: Settings, name: str) -> None:
    """Logs and traces, alike in both processes."""
    configure_logging(settings.log_level, settings.log_format)
    if settings.otlp_endpoint is not None:
        configure_tracing(settings.otlp_endpoint, name)


def build_app(settings: Settings) -> FastAPI:
    if not settings.demo:
        return create_app(settings, start_client(settings))
    from demo.pages_app import router as demo_pages
    from service.demo_mode import demo_samples, fetching_from_itself

    own = fetching_from_itself(settings)
    return create_app(own, start_client(own), extra_routers=[demo_pages], samples=demo_samples())


def serve() -> int:
    """Run the service until it is told to stop; the exit status."""
    try:
        settings = load_settings()
        configure_process(settings, "conduit-api")
        app = build_app(settings)
    except (SettingsError, EngineError, StoreError) as error:
        print(f"conduit cannot start: {error}", file=sys.stderr)
        return 2
    # uvicorn raises an interrupt that it did not wait for again once everything is down.
    with suppress(KeyboardInterrupt):
        DrainingServer(app, settings).run()
    return 0


def main() -> int:
    if sys.argv[1:2] == ["worker"]:
        return run_worker(int(sys.argv[2]))
    return serve()


if __name__ == "__main__":
    sys.exit(main())
