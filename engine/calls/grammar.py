"""JSON Schemas inside of grammars."""

from __future__ import annotations

import json
from typing import Any, Final

# As most JSON is written that models have read; free white space would let a weak one write nothing else for ever.
LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_rule(schema: str, **more: Any) -> str:
    """JSON that follows `schema`, in the layout of all our answers, as part of a Lark rule."""
    return f"%json {json.dumps({**json.loads(schema), **more, 'x-guidance': LAYOUT})}"
