"""What strangers are told of trouble, as `/readyz` needs no key. The whole text is in `/v1/cache/stats` and the log."""

from __future__ import annotations

import re
from typing import Final

# A path in quotation marks may hold blanks; any other ends at one.
_PATH: Final = re.compile(
    r"""(?P<quote>['"])(?P<quoted>/.*?)(?P=quote)|(?<![\w.:/])(?P<bare>/[^\s'",;:()]+)"""
)
_SERVER: Final = re.compile(r"(?<![\w.:-])(?:[\w.-]+|\[[0-9a-f:.]+\]):\d{1,5}(?!\w)", re.IGNORECASE)


def for_strangers(text: str) -> str:
    """The first line of `text`, with the last name of a path for the path, and without addresses of servers."""
    line = text.strip().partition("\n")[0]
    named = _PATH.sub(lambda found: _last_name(found["quoted"] or found["bare"]), line)
    return _SERVER.sub("its server", named)


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
