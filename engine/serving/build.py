"""Settings -> a started worker with its store: the same in the HTTP process and in a process of its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from engine.errors import EngineError, InternalError, StoreFailed
from engine.messages import EngineInfo
from engine.serving.admin import AdminDesk
from engine.serving.chain_place import ChainPlace
from engine.serving.device import host_bytes, pick_device
from engine.serving.load import load_runtime
from engine.serving.tokens import token_calls
from engine.serving.worker import Worker
from engine.settings import Limits, ModelSettings
from store.errors import StoreError
from store.open import Store, open_store
from store.records.entry import ImageKV
from store.settings import StoreSettings

log = logging.getLogger(__name__)

AUTO_CODEC = "auto"

# Shares of memory for the KV of running requests. Host memory also holds the store's tiers and the page cache; both
# also hold idle buffers, those of a compile, and a second buffer while one grows.
HOST_SHARE = 0.25
DEVICE_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Started:
    worker: Worker
    store: Store[ImageKV]
    desk: AdminDesk
    info: EngineInfo


def start_worker(
    model: ModelSettings, store: StoreSettings, limits: Limits, shadow_share: float = 0.0
) -> Started:
    """Raises `EngineError` where the settings cannot be served."""
    try:
        return _start(model, store, limits, shadow_share)
    except EngineError:
        raise
    except StoreError as error:
        raise StoreFailed(str(error)) from error
    except Exception as error:
        log.exception("the worker could not be started")
        raise InternalError(
            f"the worker could not be started: {type(error).__name__}, see the log"
        ) from error


def _start(model: ModelSettings, store: StoreSettings, limits: Limits, shadow_share: float) -> Started:
    device = pick_device(model.device)
    if store.codec == AUTO_CODEC:
        # Decoding int8 costs more than reading raw bytes on a CPU; on an accelerator it happens behind the copy.
        store = replace(store, codec="raw" if device == "cpu" else "int8")
    opened = open_store(replace(store, device=device))
    try:
        runtime = load_runtime(model, opened, store.codec, limits.chain_bytes)
        if limits.bytes is None:
            limits = replace(limits, bytes=kv_budget(runtime.family.device))
        opened.admin.include(ChainPlace(runtime))
        worker = Worker(runtime, limits, shadow_share)
        desk = AdminDesk(
            opened.admin, lambda *image: runtime.key_of(*image).hex, runtime.chains, token_calls(runtime)
        )
        worker.start()
    except BaseException:
        opened.entries.close()
        raise
    return Started(worker, opened, desk, runtime.info())


def kv_budget(device: torch.device) -> int:
    """Bytes of KV that running requests may hold on `device`, with the model already on it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * DEVICE_SHARE)
    return int(host_bytes() * HOST_SHARE)
