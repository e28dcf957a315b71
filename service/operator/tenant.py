"""Whose part of the store an operator's call is about."""

from __future__ import annotations

from starlette.requests import Request

from service.errors import RequestError


def tenant_meant(request: Request, named: str | None) -> str:
    """The tenant that the body names, else the caller's own. The operator's key stands for no tenant: where callers
    have keys, one of them must be named. Raises `RequestError`."""
    tenant: str | None = named or request.state.tenant
    if tenant is None:
        message = "Missing parameter: 'tenant'. With API keys, an image is stored for one of their tenants."
        raise RequestError("missing_parameter", message, param="tenant")
    return tenant
