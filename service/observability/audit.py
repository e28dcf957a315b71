"""A line in the log for everything an operator changes."""

from __future__ import annotations

import logging

from starlette.requests import Request

_log = logging.getLogger(__name__)


def audit(request: Request, action: str, **fields: object) -> None:
    """Log `action` with who asked for it."""
    client = request.client.host if request.client else None
    who = {"request_id": request.state.request_id, "client": client}
    _log.info("cache admin", extra={"action": action, **who, **fields})
