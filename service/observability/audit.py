"""A line in the log for everything that an operator changes, and for files that come and go."""

from __future__ import annotations

import logging

from starlette.requests import Request

_log = logging.getLogger(__name__)


def audit(request: Request, action: str, **fields: object) -> None:
    """Log `action` with who asked for it."""
    client = request.client.host if request.client else None
    who = {"request_id": request.state.request_id, "client": client}
    _log.info("audit", extra={"action": action, **who, **fields})
