"""Wire models of the operator's routes under `/v1/cache/`."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from service.http.wire import EXAMPLE_IMAGE, Salt, WireModel, conflict
from service.operator.entry_key import KEY
from service.setting_types import TENANT_NAME


def like(pattern: re.Pattern[str], what: str) -> AfterValidator:
    """A text that `pattern` matches whole; any other is refused as not `what`."""

    def check(value: str) -> str:
        if pattern.fullmatch(value) is None:
            raise PydanticCustomError("unknown_variant", "{what}", {"what": what})
        return value

    return AfterValidator(check)


Tenant = Annotated[str, Field(min_length=1, max_length=128)]
A_TENANT: Final = "a tenant's name: at most 64 letters, digits, '.', '_' and '-'"
TenantName = Annotated[str, like(TENANT_NAME, A_TENANT)]
Kind = Literal["image", "chain"]
Cursor = Annotated[str, like(KEY, "the cursor of the page before")]


class EntryQuery(BaseModel):
    """Filters and paging of the list of entries. `older_than` is seconds since last use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tenant: str | None = None
    model: str | None = None
    tier: str | None = None
    older_than: Annotated[float, Field(ge=0)] | None = None
    min_bytes: Annotated[int, Field(ge=0)] | None = None
    kind: Kind | None = None
    cursor: Cursor | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class EvictRequest(WireModel):
    """Which entries to remove: all conditions that are set must hold. `older_than` is seconds since last use;
    `bytes` stops when so much is freed. An empty body would remove everything and has to say `"all":
    true`."""

    tenant: str | None = None
    model: str | None = None
    tier: str | None = None
    older_than: Annotated[float, Field(ge=0)] | None = None
    min_bytes: Annotated[int, Field(ge=0)] | None = None
    kind: Kind | None = None
    bytes: Annotated[int, Field(ge=1)] | None = None
    all: bool = False
    dry_run: bool = False

    @model_validator(mode="after")
    def _says_what(self) -> EvictRequest:
        filters = (self.tenant, self.model, self.tier, self.older_than, self.min_bytes, self.kind)
        conditions = (*filters, self.bytes)
        if (not self.all) and all(condition is None for condition in conditions):
            raise conflict("all", "give a condition, 'bytes', or \"all\": true")
        return self


class ClearRequest(WireModel):
    """`tenant` null is everybody's. Pinned entries stay unless they are included."""

    tenant: Tenant | None = None
    include_pinned: bool = False


class LookupRequest(WireModel):
    """`image` as in a chat request; `tenant` and `salt` as those of the request that would use the entry."""

    image: Annotated[str, Field(examples=[EXAMPLE_IMAGE])]
    tenant: TenantName | None = None
    salt: Salt | None = None


class PinRequest(WireModel):
    """`ttl` in seconds for a soft pin (evicted last), `"hard": true` for one that is never evicted."""

    ttl: Annotated[float, Field(gt=0)] | None = None
    hard: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> PinRequest:
        if (self.ttl is None) != self.hard:
            raise conflict("ttl", "give either 'ttl' or \"hard\": true")
        return self


class QuotaRequest(WireModel):
    """`bytes` in each tier."""

    bytes: Annotated[int, Field(ge=1)]


class WarmRequest(WireModel):
    """Images to compute before they are asked about, for `tenant` and `salt`."""

    images: Annotated[list[str], Field(min_length=1, max_length=10_000, examples=[[EXAMPLE_IMAGE]])]
    tenant: TenantName | None = None
    salt: Salt | None = None


OPERATOR_BODIES: Final = (ClearRequest, EvictRequest, LookupRequest, PinRequest, QuotaRequest, WarmRequest)
