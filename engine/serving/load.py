"""Checkpoint + store -> `Runtime`."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import torch
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from engine.answer.constraint import Constraints
from engine.chains.tree import Chains
from engine.errors import EngineError, UnsupportedModel
from engine.families.checkpoint import Checkpoint
from engine.families.known import family_of
from engine.messages import CacheOptions
from engine.passes.kv import KVPool
from engine.phases import phase
from engine.prompt.chat import ChatPrompt
from engine.serving.device import free_bytes, pick_device
from engine.serving.gate import reuse_is_unsound
from engine.serving.heap import keep_large_blocks_apart
from engine.serving.hub import checkpoint_folder
from engine.serving.runtime import Runtime
from engine.settings import ModelSettings
from store.open import Store
from store.records.entry import ImageKV
from store.records.keys import ModelKey

log = logging.getLogger(__name__)


def load_runtime(settings: ModelSettings, store: Store[ImageKV], codec: str, chain_bytes: int = 0) -> Runtime:
    """Load the checkpoint and run the start-up gate. Raises `UnsupportedModel` for an architecture we do not serve."""
    keep_large_blocks_apart()
    transformers_logging.disable_progress_bar()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    folder = checkpoint_folder(settings.path, settings.revision)
    try:
        runtime = _load(folder, settings, store, codec, Chains(chain_bytes))
    except EngineError:
        raise
    except Exception as error:
        # Whatever a library finds wrong with a file or a device, in our words; theirs are in the log.
        log.exception("the checkpoint could not be loaded")
        raise UnsupportedModel(
            f"the checkpoint {settings.path!r} cannot be loaded as {settings.dtype} on {settings.device}: "
            f"{type(error).__name__}, see the log"
        ) from error
    runtime.choose(CacheOptions())  # defaults that no request could run with stop the start
    return runtime


def _load(
    folder: Path, settings: ModelSettings, store: Store[ImageKV], codec: str, chains: Chains
) -> Runtime:
    with phase("its family known"):
        config = AutoConfig.from_pretrained(folder)
        served = family_of((config.architectures or ["none"])[0])
    dtype = _dtype(settings.dtype, config)
    device = pick_device(settings.device)
    checkpoint = Checkpoint(folder, dtype, device)
    checkpoint.check(free_bytes(device))
    with phase("weights loaded", model=settings.path, dtype=str(dtype), device=device):
        family = served.load(checkpoint)
    prompt = ChatPrompt(checkpoint.tokenizer, family.image_token, settings.system)
    pool = KVPool(family.shape, family.dtype, family.device)
    with phase("reuse checked against full prefill"):
        refused = reuse_is_unsound(family, prompt, pool)
    if refused is not None:
        log.error("reuse is refused for this model: %s", refused)
    key = ModelKey(
        model_id=settings.name or settings.path.rstrip("/").rsplit("/", 1)[-1],
        revision=settings.revision or "",
        weights_fingerprint=weights_fingerprint(folder),
        processor=family.processor_name,
        dtype=str(dtype).removeprefix("torch."),
        codec=codec,
        prefix_ids=prompt.prefix_ids,
        rope=family.rope_name,
    )
    constraints = Constraints(prompt.tokenizer, family.shape.vocab, family.stop_tokens)
    return Runtime(
        family, prompt, pool, store, key, settings.namespace, settings.defaults, refused, constraints, chains
    )


def weights_fingerprint(folder: Path) -> str:
    """SHA-256 over config and weight files, names and contents: a model's name is not its identity."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        with file.open("rb") as stream:
            digest.update(f"{file.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()};".encode())
    return digest.hexdigest()


def _dtype(name: str, config: object) -> torch.dtype:
    if name == "auto":
        own = getattr(config, "dtype", None)
        return own if isinstance(own, torch.dtype) else torch.float32
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UnsupportedModel(f"CONDUIT_DTYPE: {name!r} is no floating-point dtype")
    return dtype
