"""How the value of one setting is read from its text, and what is refused because it could never work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    TypeAdapter,
)

TENANT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HOST: Final = re.compile(
    r"(?P<wild>\*\.)?(?:[\w-]+(?:\.[\w-]+)*|[0-9a-f]*:[0-9a-f:.]*:[0-9a-f.]*|\[[0-9a-f:.]+\](?=:))(?::(?P<port>\d{1,5}))?",
    re.IGNORECASE,
)
_HTTP_URL: Final = TypeAdapter(HttpUrl)


class ApiKey(BaseModel):
    """One caller: `tenant` is its name and the namespace of everything it stores."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    secret: SecretStr


def split_list(value: object) -> object:
    """The items of a text separated by commas; anything else as it is."""
    if not isinstance(value, str):
        return value
    items = [item.strip() for item in value.split(",") if item.strip()]
    if not items:
        raise ValueError("expected names separated by commas")
    return items


def _parse_api_key(value: object) -> object:
    if not isinstance(value, str):
        return value
    name, _, secret = value.partition(":")
    if not TENANT_NAME.fullmatch(name) or len(secret) < 8:
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


def _check_host(value: str) -> str:
    found = _HOST.fullmatch(value)
    if found is None or int(found["port"] or 1) not in range(1, 65536):
        raise ValueError("expected host or host:port, without a scheme or path")
    return value


def _check_single_host(value: str) -> str:
    if value.startswith("*"):
        raise ValueError("expected single hosts, not a pattern")
    return value


def _check_origin(value: str) -> str:
    """An origin as a browser writes it."""
    if value == "*":
        raise ValueError(
            "expected origins by name: any page of the world could ask a service that admits all"
        )
    scheme, _, host = value.lower().partition("://")
    if scheme not in ("http", "https") or host.startswith("*"):
        raise ValueError("expected origins such as https://app.example.org or http://localhost:3000")
    return f"{scheme}://{_check_host(host)}"


def _check_folder(value: Path) -> Path:
    if not value.is_absolute() or ".." in value.parts or not value.is_dir():
        raise ValueError("expected absolute paths of folders that are there")
    return value


def _check_http_url(value: str) -> str:
    _HTTP_URL.validate_python(value)
    return value


Text = Annotated[str, Field(min_length=1)]
Host = Annotated[str, AfterValidator(_check_host)]
Hosts = Annotated[tuple[Host, ...], BeforeValidator(split_list)]
SingleHosts = Annotated[
    tuple[Annotated[Host, AfterValidator(_check_single_host)], ...], BeforeValidator(split_list)
]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_check_origin)], ...], BeforeValidator(split_list)]
Url = Annotated[str, AfterValidator(_check_http_url)]
ApiKeys = Annotated[
    tuple[Annotated[ApiKey, BeforeValidator(_parse_api_key)], ...], BeforeValidator(split_list)
]
Folders = Annotated[tuple[Annotated[Path, AfterValidator(_check_folder)], ...], BeforeValidator(split_list)]
PolicyOptions = Annotated[Mapping[str, bool | int | float | str], BeforeValidator(_parse_object)]
Positive = Annotated[float, Field(gt=0)]
