"""Who asks: from a key in a header to a tenant, and from a tenant to the namespace of what it stores."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from service.settings import Settings
from store.records.keys import part_of

DEFAULT_TENANT: Final = "default"


class KeyRing:
    """The keys of the settings. Only their digests are kept, and every comparison looks at all of them."""

    def __init__(self, settings: Settings) -> None:
        self._tenants = {_digest(key.secret.get_secret_value()): key.tenant for key in settings.api_keys}
        admin = settings.admin_key
        self._admin = None if admin is None else _digest(admin.get_secret_value())

    @property
    def open(self) -> bool:
        """True if no key of any kind is set: then everybody is the default tenant and the operator."""
        return not self._tenants and self._admin is None

    @property
    def has_tenants(self) -> bool:
        """True if callers need a key of their own."""
        return bool(self._tenants)

    def tenant(self, key: str | None) -> str | None:
        """The tenant that `key` stands for; None if it stands for nobody."""
        if not self._tenants:
            return DEFAULT_TENANT
        if key is None:
            return None
        given, found = _digest(key), None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(digest, given):
                found = tenant
        return found

    def is_admin(self, key: str | None) -> bool:
        """True if `key` may use the operator's routes. With API keys and no admin key nobody may: one tenant
        must not see what the others store."""
        if self.open:
            return True
        return self._admin is not None and key is not None and hmac.compare_digest(self._admin, _digest(key))


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of `Authorization: Bearer` or, as some clients send it, `x-api-key`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def namespace(tenant: str, salt: str | None) -> str:
    """Where a request of `tenant` stores. The salt splits a tenant's own space and can never name another's:
    the tenant is part of what is hashed, and stays readable in front for the operator, who finds and limits all
    parts under that name."""
    if salt is None:
        return tenant
    digest = hashlib.sha256(f"{tenant}\0{salt}".encode()).hexdigest()
    return part_of(tenant, digest[:32])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
