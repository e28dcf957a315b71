"""Settings of the whole program, read once from `CONDUIT_*` environment variables.

The HTTP side uses some of them; the composition root hands the others to the engine and the store. A variable
that is not known, or a value that cannot be read, stops the start: a misspelt limit must not silently be no
limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

PREFIX: Final = "CONDUIT_"
MIB: Final = 1024**2
GIB: Final = 1024**3

_TENANT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

ImageFormat = Literal["jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"]


class SettingsError(Exception):
    """The environment does not describe a service that can start. The message names each variable at
    fault."""


class ApiKey(BaseModel):
    """One caller: `tenant` is its name and the namespace of everything it stores."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    secret: SecretStr


def _split_list(value: object) -> object:
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _parse_api_key(value: object) -> object:
    if not isinstance(value, str):
        return value
    name, _, secret = value.partition(":")
    if not _TENANT_NAME.fullmatch(name) or len(secret) < 8:
        raise ValueError(
            "expected name:key with a name of letters, digits, '.', '_', '-' and 8 or more characters of key"
        )
    return ApiKey(tenant=name, secret=SecretStr(secret))


def _parse_object(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('expected a JSON object such as {"preset": "paper"}') from None


Names = Annotated[tuple[str, ...], BeforeValidator(_split_list)]
ApiKeys = Annotated[
    tuple[Annotated[ApiKey, BeforeValidator(_parse_api_key)], ...], BeforeValidator(_split_list)
]
Formats = Annotated[tuple[ImageFormat, ...], BeforeValidator(_split_list)]
PolicyOptions = Annotated[Mapping[str, bool | int | float | str], BeforeValidator(_parse_object)]
Positive = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    """Everything that can be set. Sizes accept units (`512MiB`), lists are comma-separated, times are in
    seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # where it listens, and who may ask
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    otlp_endpoint: str | None = None
    api_keys: ApiKeys = ()
    admin_key: Annotated[SecretStr, Field(min_length=8)] | None = None
    public_metrics: bool = False
    web_page: bool = True
    demo: bool = False

    # limits of a request
    max_body_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(64 * MIB)
    body_timeout: Positive = 60.0
    max_images: Annotated[int, Field(ge=1)] = 32
    max_image_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(20 * MIB)
    max_image_pixels: Annotated[int, Field(ge=1, le=178_000_000)] = 40_000_000
    max_request_pixels: Annotated[int, Field(ge=1)] = 160_000_000
    request_timeout: Positive = 300.0
    ping_interval: Positive = 15.0

    # images from elsewhere
    image_formats: Formats = ("jpeg", "png", "webp", "gif", "bmp")
    fetch_timeout: Positive = 10.0
    fetch_concurrency: Annotated[int, Field(ge=1)] = 16
    decode_threads: Annotated[int, Field(ge=1)] = 2
    url_cache_bytes: ByteSize = ByteSize(256 * MIB)
    upload_cache_bytes: ByteSize = ByteSize(256 * MIB)
    allowed_hosts: Names = ()
    allowed_private_hosts: Names = ()

    # load
    max_concurrent: Annotated[int, Field(ge=1)] = 64
    max_concurrent_per_tenant: Annotated[int, Field(ge=1)] | None = None
    rate_limit: Annotated[int, Field(ge=1)] | None = None
    stall_after: Positive = 60.0
    drain_timeout: Annotated[float, Field(ge=0)] = 20.0

    # the engine
    model: str = "models/page-reader"
    model_name: str | None = None
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")] = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None
    policy: str = "conduit"
    policy_options: PolicyOptions = {}
    refresh_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    max_queue: Annotated[int, Field(ge=1)] = 64
    max_running: Annotated[int, Field(ge=1)] = 8
    kv_bytes: Annotated[ByteSize, Field(ge=1)] | None = None
    worker: Literal["process", "thread"] = "process"
    shadow_share: Annotated[float, Field(ge=0, le=1)] = 0.0

    # the store
    namespace: str = "default"
    store_path: Path = Path("var/store")
    memory_bytes: ByteSize = ByteSize(GIB)
    disk_bytes: ByteSize = ByteSize(8 * GIB)
    decoded_bytes: ByteSize = ByteSize(512 * MIB)
    queue_bytes: ByteSize = ByteSize(512 * MIB)
    codec: str = "auto"
    eviction: Literal["lru", "lfu", "cost"] = "lru"
    persist_on: Literal["first", "second"] = "first"
    redis_url: SecretStr | None = None
    redis_cluster: bool = False
    redis_bytes: ByteSize = ByteSize(0)
    redis_timeout: Positive = 0.25

    @model_validator(mode="after")
    def _keys_differ(self) -> Settings:
        names = [key.tenant for key in self.api_keys]
        secrets = [key.secret.get_secret_value() for key in self.api_keys]
        if self.admin_key is not None:
            secrets.append(self.admin_key.get_secret_value())
        if len(set(secrets)) != len(secrets):
            raise ValueError("api_keys and admin_key must all differ")
        if len(set(names)) != len(names):
            raise ValueError("api_keys names a tenant twice")
        return self


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Settings from the `CONDUIT_*` variables of `environ`. Raises `SettingsError` naming every variable at
    fault."""
    values: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)
    }
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        # The input is left out: it may be a key.
        problems = [
            f"{PREFIX}{str(item['loc'][0]).upper()}: {_problem(item['type'], item['msg'])}"
            if item["loc"]
            else item["msg"]
            for item in error.errors(include_input=False, include_url=False)
        ]
        raise SettingsError("; ".join(problems)) from None


def _problem(kind: str, text: str) -> str:
    return "there is no such setting" if kind == "extra_forbidden" else text
