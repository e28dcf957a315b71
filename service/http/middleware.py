"""Around every route: a request id, the key check, an access line in the log, and the last net for errors.

Plain ASGI and one layer, so that streams pass through untouched and a client's leaving is seen at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.browsers import BrowserGuard
from service.http.error_shapes import error_response
from service.http.tenancy import KeyRing, presented_key

_log = logging.getLogger(__name__)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
ADMIN_PREFIX: Final = "/v1/cache/"
TENANTS_PREFIXES: Final = (
    "/v1/chat",
    "/v1/messages",
    "/v1/responses",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/files",
)
"""Of what a tenant alone may do: the operator's key stands for none."""
METRICS_PATH: Final = "/metrics"
_REFUSALS: Final = {
    "invalid_api_key": "A valid API key is needed: send 'authorization: Bearer <key>'.",
    "admin_key_required": "This needs the operator's key: send it in the place of your own.",
    "host_not_allowed": "A service without API keys is asked by loopback names or by its address only: use these, "
    "add the name in the 'host' header to CONDUIT_TRUSTED_HOSTS, or set keys.",
    "origin_not_allowed": "A web page of another site asks for a change, which a service without API keys does not "
    "make: ask from its own page or from a program, or set keys.",
}
HEALTH_PATHS: Final = frozenset({"/livez", "/readyz", "/health"})


class Access:
    """Which paths are open. Everything is closed once there are keys, a path that does not exist included, so
    that a new route is closed until somebody opens it; except health and the paths `public` (with a trailing
    slash: what is below). The store's routes and the metrics are the operator's as soon as there is any key."""

    def __init__(self, keys: KeyRing, public: frozenset[str]) -> None:
        self._keys = keys
        self._public = HEALTH_PATHS | public
        self._below = tuple(path for path in public if path.endswith("/") and path != "/")

    def needs_key(self, path: str) -> bool:
        if self._keys.open or path in self._public or path.startswith(self._below):
            return False
        return self._keys.has_tenants or _is_operators(path)

    def is_open(self, path: str) -> bool:
        """True where anybody may ask for `path` who reaches the service at all, because callers have no keys."""
        return not self._keys.has_tenants and not self.needs_key(path) and path not in HEALTH_PATHS

    def refusal(self, path: str, key: str | None) -> str | None:
        """The code of the error for who asks with `key`, None if he may."""
        if not self.needs_key(path):
            return None
        admin = self._keys.is_admin(key)
        if _is_operators(path):
            return None if admin else "invalid_api_key" if key is None else "admin_key_required"
        if self._keys.tenant(key) is not None or (admin and not path.startswith(TENANTS_PREFIXES)):
            return None
        return "invalid_api_key"


def _is_operators(path: str) -> bool:
    return path.startswith(ADMIN_PREFIX) or path == METRICS_PATH


class Gatekeeper:
    """The one middleware of the service."""

    def __init__(self, app: ASGIApp, keys: KeyRing, access: Access, guard: BrowserGuard) -> None:
        self._app = app
        self._keys = keys
        self._access = access
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        given = headers.get("x-request-id", "")
        state["request_id"] = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        tracked = _Tracked(send, state["request_id"])
        started = time.monotonic()
        try:
            await self._serve(scope, receive, tracked, headers)
        finally:
            self._log_access(scope, tracked.status, time.monotonic() - started)

    async def _serve(self, scope: Scope, receive: Receive, send: _Tracked, headers: Headers) -> None:
        key = presented_key(headers)
        scope["state"]["tenant"] = self._keys.tenant(key)
        refusal = self._access.refusal(scope["path"], key)
        if refusal is None and self._access.is_open(scope["path"]):
            refusal = self._guard.refusal(scope["method"], headers)
        if refusal is not None:
            await _refuse(scope["path"], refusal)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if send.status is not None:
                raise
            await error_response(scope["path"], "draining", "The service is shutting down.")(
                scope, receive, send
            )
        except Exception:
            _log.exception("unhandled error", extra={"request_id": scope["state"]["request_id"]})
            if send.status is not None:
                raise  # the answer has begun: the connection has to break
            message = "The service failed; the cause is in its log."
            await error_response(scope["path"], "internal_error", message)(scope, receive, send)

    def _log_access(self, scope: Scope, status: int | None, seconds: float) -> None:
        state = scope["state"]
        fields = {
            "request_id": state["request_id"],
            "tenant": state.get("tenant"),
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 6),
        }
        quiet = scope["path"] in HEALTH_PATHS or scope["path"] == METRICS_PATH
        _log.log(logging.DEBUG if quiet else logging.INFO, "request", extra=fields)


class _Tracked:
    """A `send` that adds the request id and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._request_id
        await self._send(message)


def _refuse(path: str, code: str) -> JSONResponse:
    response = error_response(path, code, _REFUSALS[code])
    if code == "invalid_api_key":
        response.headers["www-authenticate"] = "Bearer"
    return response
