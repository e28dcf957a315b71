"""Wire model of `cache`: how a request uses the store of image KV."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from service.http.wire import Salt, Whole, WireModel, conflict, without_no_ops

UNSUPPORTED_IN_CACHE: Final[dict[str, tuple[object, ...]]] = {"id": ()}


# Prompt rows of one decode step: more only make the second token late.
MOST_REFINED_ROWS: Final = 4096

OptionName = Annotated[str, Field(max_length=64)]
Option = Annotated[
    Annotated[bool, Tag("@bool")]
    | Annotated[int, Tag("@int")]
    | Annotated[float, Tag("@float")]
    | Annotated[str, Field(max_length=256), Tag("@str")],
    Discriminator(
        lambda value: f"@{type(value).__name__}",
        custom_error_type="unknown_variant",
        custom_error_message="a string, a number, true or false",
    ),
]


class CacheControls(WireModel):
    """How the request uses the store of image KV."""

    mode: Literal["auto", "read", "bypass", "rewrite"] | None = None
    policy: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    refresh_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    refine: Annotated[Whole, Field(ge=0, le=MOST_REFINED_ROWS)] | None = None
    options: Annotated[dict[OptionName, Option], Field(max_length=32, fail_fast=True)] | None = None
    salt: Salt | None = None
    chain: Literal["auto", "exact", "off"] | None = None
    turns: Literal["compute", "reuse"] | None = None
    pin: bool | None = None
    ttl: Annotated[float, Field(ge=1, le=86_400)] | None = None
    explain: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return without_no_ops(body, UNSUPPORTED_IN_CACHE)

    @model_validator(mode="after")
    def _pin_makes_sense(self) -> CacheControls:
        if self.ttl is not None and not self.pin:
            raise conflict("cache.ttl", "'cache.ttl' goes with 'cache.pin': true")
        if self.pin and self.mode in ("read", "bypass"):
            raise conflict(
                "cache.pin", f"with 'cache.mode' {self.mode} nothing is stored that could be pinned"
            )
        return self


def agreed_salt(cache: CacheControls | None, cache_salt: str | None) -> str | None:
    """The salt of a request, which may stand in `cache_salt` (as in vLLM), in `cache.salt`, or in both if they are the
    same."""
    own = cache.salt if cache else None
    if cache_salt is not None and own not in (None, cache_salt):
        raise conflict("cache_salt", "'cache_salt' and 'cache.salt' differ")
    return cache_salt or own
