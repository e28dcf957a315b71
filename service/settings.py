"""Settings of the whole program, read once from `CONDUIT_*` environment variables.

The HTTP side uses some of them; the composition root hands the others to the engine and the store. A variable
that is not known, or a value that cannot work, stops the start: a misspelt limit must not silently be no limit.
An empty variable is one that is not set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.setting_types import (
    ApiKeys,
    Folders,
    Hosts,
    Origins,
    PolicyOptions,
    Positive,
    SingleHosts,
    Text,
    Url,
    split_list,
)

PREFIX: Final = "CONDUIT_"
MIB: Final = 1024**2
GIB: Final = 1024**3

# What clients read (examples/, docs/api.md); often set in the shell that also starts a service.
_CLIENTS_OWN: Final = frozenset({"url", "api_key"})

ImageFormat = Literal["jpeg", "png", "webp", "gif", "bmp", "tiff", "avif"]
Formats = Annotated[tuple[ImageFormat, ...], BeforeValidator(split_list)]


class SettingsError(Exception):
    """The environment does not describe a service that can start. The message names each variable at
    fault."""


class Settings(BaseSettings):
    """Everything that can be set. Sizes accept units (`512MiB`), lists are comma-separated, times are in
    seconds. What is not given as an argument is read from the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        enable_decoding=False,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        str_strip_whitespace=True,
    )

    # where it listens, and who may ask
    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    otlp_endpoint: Url | None = None
    api_keys: ApiKeys = ()
    admin_key: Annotated[SecretStr, Field(min_length=8)] | None = None
    trusted_hosts: Hosts = ()
    cors_origins: Origins = ()
    public_metrics: bool = False
    web_page: bool = True
    demo: bool = False

    # limits of a request
    max_body_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(64 * MIB)
    head_timeout: Positive = 20.0
    body_timeout: Positive = 60.0
    max_images: Annotated[int, Field(ge=1)] = 32
    max_image_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(20 * MIB)
    max_image_pixels: Annotated[int, Field(ge=1, le=178_000_000)] = 40_000_000
    max_request_pixels: Annotated[int, Field(ge=1)] = 160_000_000
    request_timeout: Positive = 300.0
    ping_interval: Positive = 15.0
    send_timeout: Positive = 30.0
    idle_timeout: Positive = 75.0

    # images from elsewhere
    image_formats: Formats = ("jpeg", "png", "webp", "gif", "bmp")
    fetch_timeout: Positive = 10.0
    fetch_concurrency: Annotated[int, Field(ge=1)] = 16
    decode_concurrency: Annotated[int, Field(ge=1)] = 2
    decode_timeout: Positive = 20.0
    url_cache_bytes: ByteSize = ByteSize(256 * MIB)
    upload_cache_bytes: ByteSize = ByteSize(256 * MIB)
    allowed_hosts: Hosts = ()
    allowed_private_hosts: SingleHosts = ()
    local_folders: Folders = ()

    # uploaded files
    files_path: Path | None = None
    max_file_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(64 * MIB)
    file_quota_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(GIB)
    file_quota_count: Annotated[int, Field(ge=1)] = 1000
    file_ttl: Annotated[int, Field(ge=0)] = 30 * 24 * 3600
    max_pdf_pages: Annotated[int, Field(ge=1, le=100_000)] = 1000
    pdf_dpi: Annotated[float, Field(ge=18, le=600)] = 144.0

    # load
    max_connections: Annotated[int, Field(ge=8)] = 1024
    max_concurrent: Annotated[int, Field(ge=1)] = 64
    max_concurrent_per_tenant: Annotated[int, Field(ge=1)] | None = None
    rate_limit: Annotated[int, Field(ge=1)] | None = None
    stall_after: Positive = 60.0
    drain_timeout: Annotated[float, Field(ge=0)] = 20.0

    # the engine
    model: Text = "models/page-reader"
    model_name: Text | None = None
    revision: Text | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    policy: Text = "conduit"
    policy_options: PolicyOptions = {}
    refresh_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    refine: Annotated[int, Field(ge=0, le=4096)] = 0
    max_queue: Annotated[int, Field(ge=1)] = 64
    max_running: Annotated[int, Field(ge=1)] = 8
    kv_bytes: Annotated[ByteSize, Field(ge=1)] | None = None
    worker: Literal["process", "thread"] = "process"
    load_timeout: Positive = 1800.0
    chain_bytes: ByteSize = ByteSize(GIB)
    chain: Literal["auto", "exact", "off"] = "auto"
    turns: Literal["compute", "reuse"] = "compute"
    refine_idle: Annotated[float, Field(ge=0)] = 300.0
    shadow_share: Annotated[float, Field(ge=0, le=1)] = 0.0

    # the store
    namespace: Text = "default"
    store_path: Path = Path("var/store")
    memory_bytes: ByteSize = ByteSize(GIB)
    disk_bytes: ByteSize = ByteSize(8 * GIB)
    decoded_bytes: ByteSize = ByteSize(512 * MIB)
    queue_bytes: ByteSize = ByteSize(512 * MIB)
    codec: Text = "auto"
    eviction: Literal["lru", "lfu", "cost"] = "lru"
    persist_on: Literal["first", "second"] = "first"
    persist_chains: bool = True
    redis_url: SecretStr | None = None
    redis_cluster: bool = False
    redis_bytes: ByteSize = ByteSize(0)
    redis_timeout: Positive = 0.25

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        names = [key.tenant for key in self.api_keys]
        secrets = [key.secret.get_secret_value() for key in self.api_keys]
        if self.admin_key is not None:
            secrets.append(self.admin_key.get_secret_value())
        if len(set(secrets)) != len(secrets):
            raise ValueError("CONDUIT_API_KEYS: all keys must differ, CONDUIT_ADMIN_KEY too")
        if len(set(names)) != len(names):
            raise ValueError("CONDUIT_API_KEYS: it names a tenant twice")
        return self

    @model_validator(mode="after")
    def _redis_can_be_reached(self) -> Self:
        if self.redis_url is not None:
            from store.tiers.redis.url import check  # brings the driver, which few need

            try:
                check(self.redis_url.get_secret_value(), self.redis_cluster)
            except ValueError as error:
                raise ValueError(str(error).replace("redis_url", "CONDUIT_REDIS_URL", 1)) from None
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls)


class _Environment(EnvSettingsSource):
    """Hands on what is no setting too, so that `extra="forbid"` meets it."""

    def __call__(self) -> dict[str, Any]:
        return {**self._unknown(), **super().__call__()}

    def _unknown(self) -> dict[str, Any]:
        prefix = PREFIX.lower()
        given = {
            name.removeprefix(prefix): value
            for name, value in self.env_vars.items()
            if name.startswith(prefix)
        }
        known = self.settings_cls.model_fields.keys() | _CLIENTS_OWN
        return {name: value for name, value in given.items() if name not in known}


def load_settings() -> Settings:
    """Settings from the environment. Raises `SettingsError` naming every variable at fault."""
    try:
        return Settings()
    except ValidationError as error:
        # The input is left out: it may be a key.
        found = error.errors(include_input=False, include_url=False)
        raise SettingsError("; ".join(_problem(item) for item in found)) from None


def _problem(fault: ErrorDetails) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return text
    name = f"{PREFIX}{str(fault['loc'][0]).upper()}"
    return f"{name}: there is no such setting" if fault["type"] == "extra_forbidden" else f"{name}: {text}"
