"""Log lines as JSON objects (one a line) or as text, with whatever fields a call gave."""

from __future__ import annotations

import json
import logging
from typing import Final, Literal

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class JsonFormatter(logging.Formatter):
    """Time (UTC seconds), level, logger, message, the fields of `extra`, and a traceback where there is
    one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """For a person at a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_one_line(value)}" for name, value in _fields(record).items())
        return super().format(record) + fields


def configure_logging(level: str, style: Literal["json", "text"]) -> None:
    """Send everything at `level` and above to standard error. Replaces handlers that were there."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These repeat every connection at a level that people switch on to see our own lines, or say what we say ourselves.
    for chatty in ("httpcore", "httpx", "PIL", "asyncio", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _one_line(value: object) -> str:
    # A path with a line break in it must not look like a line of its own.
    text = str(value)
    return text if text.isprintable() else repr(text)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
