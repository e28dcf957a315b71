"""Name of a model -> the folder with its files, fetched from the hub where it is not on this machine."""

from __future__ import annotations

import logging
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from engine.errors import UnsupportedModel
from engine.phases import phase

log = logging.getLogger(__name__)

WEIGHT_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")


def checkpoint_folder(model: str, revision: str | None) -> Path:
    """Raises `UnsupportedModel` with what to change where there is no such checkpoint, or none can be had."""
    folder = Path(model)
    if folder.is_dir():
        return folder
    if model.startswith((".", "/")) or model.count("/") != 1:
        raise UnsupportedModel(f"CONDUIT_MODEL: {model!r} is neither a folder nor a hub name")
    log.info("looking for %s in the hub and its cache", model)
    try:
        with phase("checkpoint found", model=model):
            return Path(snapshot_download(model, revision=revision, allow_patterns=list(WEIGHT_FILES)))
    except Exception as error:
        log.debug("the hub said", exc_info=error)
        reason = _reason(error, model, revision)
        raise UnsupportedModel(f"CONDUIT_MODEL: {model!r} cannot be fetched: {reason}") from error


def _reason(error: Exception, model: str, revision: str | None) -> str:
    # The gated one is also one that is not found, and the missing copy is also an OSError.
    match error:
        case GatedRepoError():
            return "it is gated; set HF_TOKEN to a token whose owner may read it"
        case RevisionNotFoundError():
            return f"it has no revision {revision!r} (CONDUIT_REVISION)"
        case RepositoryNotFoundError():
            return "there is none of that name, or it is private and HF_TOKEN does not open it"
        case LocalEntryNotFoundError():
            return "the hub cannot be reached, and its cache on this machine has no copy"
        case OSError(strerror=str(words)):
            return f"{words} in the hub's cache {constants.HF_HUB_CACHE} (HF_HOME sets where it is)"
        case _:
            return type(error).__name__
