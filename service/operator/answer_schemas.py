"""What the operator's routes answer, for the OpenAPI document; tests/service/http/test_openapi.py holds it true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from engine.figures import ChainStats
from store.types import EntryInfo, QuotaInfo, StoreStats


@dataclass(frozen=True, kw_only=True)
class CacheStats(StoreStats):
    """The store's own, and the chains in memory."""

    chains: ChainStats


class LookupBody(BaseModel):
    digest: str
    width: int
    height: int
    entry: EntryInfo | None


class QuotasBody(BaseModel):
    quotas: list[QuotaInfo]


class CompactBody(BaseModel):
    """Bytes given back by tier, or why a tier could not."""

    tiers: dict[str, int | str]


class LivezBody(BaseModel):
    status: Literal["alive", "stalled"]
    progress_age_seconds: float


class ReadyzBody(BaseModel):
    status: Literal["ready", "unready"]
    reasons: list[str]
    degraded: list[str]


class VersionModel(BaseModel):
    name: str
    device: str
    dtype: str


class VersionBody(BaseModel):
    version: str
    model: VersionModel


class ArchitectureBody(BaseModel):
    input_modalities: list[str]
    output_modalities: list[str]


class ModelBody(BaseModel):
    """OpenAI's model, what it can read and how it may be asked. `description`: the limits of the one that ships."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    description: str | None
    max_model_len: int
    architecture: ArchitectureBody
    policies: list[str]
    default_policy: str
    default_refresh_ratio: float


class ModelsBody(BaseModel):
    object: Literal["list"]
    data: list[ModelBody]
