"""The composition root: settings -> store -> worker -> app -> uvicorn. The only module that knows every
layer."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from fastapi import FastAPI

from engine.client import EngineClient
from engine.errors import EngineError
from engine.phases import phase
from engine.settings import Defaults, Limits, ModelSettings
from engine.tracing import configure as configure_tracing
from engine.transport.inprocess import InProcessClient
from engine.transport.process import ProcessClient
from engine.transport.wire import Launch
from service.app import create_app
from service.http.server import DrainingServer, settle
from service.listen import bound_sockets
from service.observability.logs import configure_logging
from service.remarks import remarks
from service.settings import Settings, SettingsError, load_settings
from service.shipped import limits_of
from service.version import VERSION
from store.errors import StoreError
from store.settings import StoreSettings

_log = logging.getLogger("conduit.start")


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
        defaults=Defaults(
            settings.policy, ratio, settings.policy_options, settings.refine, settings.chain, settings.turns
        ),
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
        chains=settings.persist_chains,
        redis_url=None if settings.redis_url is None else settings.redis_url.get_secret_value(),
        redis_cluster=settings.redis_cluster,
        redis_bytes=settings.redis_bytes,
        redis_timeout=settings.redis_timeout,
    )


def worker_limits(settings: Settings) -> Limits:
    return Limits(
        waiting=settings.max_queue,
        running=settings.max_running,
        bytes=settings.kv_bytes,
        chain_bytes=settings.chain_bytes,
        refine_idle=settings.refine_idle,
    )


def start_client(settings: Settings) -> EngineClient:
    """Load the model and open the store, in a supervised process or on a thread of this one."""
    launch = Launch(
        model_settings(settings), store_settings(settings), worker_limits(settings), settings.shadow_share
    )
    if settings.worker == "process":
        command = [sys.executable, "-m", "service", "worker"]
        client = ProcessClient(
            command, launch, settings.stall_after, settings.load_timeout, settings.upload_cache_bytes
        )
        client.start()
        return client
    with phase("libraries loaded"):
        from engine.serving.build import start_worker  # brings torch into this process

    started = start_worker(launch.model, launch.store, launch.limits, launch.shadow_share)
    return InProcessClient(started.worker, started.store.entries, started.desk, started.info)


def run_worker(descriptor: int) -> int:
    """The other end of `ProcessClient`: this program again, as the worker."""
    configure_process(load_settings(), "conduit-worker")
    with phase("libraries loaded"):
        from engine.transport.child import serve_parent

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
        with bound_sockets(settings.host, settings.port) as sockets:
            # Port 0 means any; demo mode fetches from the one it got.
            settings = settings.model_copy(update={"port": sockets[0].getsockname()[1]})
            _introduce(settings)
            with phase("the worker is up"):
                app = build_app(settings)
            settle()
            # uvicorn raises an interrupt that it did not wait for again once everything is down.
            with suppress(KeyboardInterrupt):
                DrainingServer(app, settings).run(sockets)
            return 0
    except (SettingsError, EngineError, StoreError) as error:
        print(f"conduit cannot start: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _introduce(settings: Settings) -> None:
    _log.info("starting", extra={"version": VERSION, "model": settings.model})
    for remark in remarks(settings):
        _log.warning(remark)
    if limits := limits_of(settings.model):
        _log.warning(limits)


def main() -> int:
    if sys.argv[1:2] == ["worker"]:
        return run_worker(int(sys.argv[2]))
    return serve()


if __name__ == "__main__":
    sys.exit(main())
