"""What an operator should know about his settings before anybody finds it out for him: said once, at the start."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from service.settings import Settings


def remarks(settings: Settings) -> Iterator[str]:
    """Each is a warning of one line."""
    if settings.api_keys and settings.admin_key is None:
        metrics = "" if settings.public_metrics else " and /metrics"
        yield f"no CONDUIT_ADMIN_KEY is set: nobody may use /v1/cache/{metrics}"
    if settings.api_keys:
        return
    if settings.admin_key is not None:
        yield "only CONDUIT_ADMIN_KEY is set: without CONDUIT_API_KEYS, whoever reaches the service may ask"
    elif not _is_loopback(settings.host):
        yield (
            f"no key is set and the service listens on {settings.host}: whoever reaches it may ask, and empty the "
            "store. Set CONDUIT_API_KEYS and CONDUIT_ADMIN_KEY"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
