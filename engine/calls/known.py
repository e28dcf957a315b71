"""The formats of tool calls that are read."""

from __future__ import annotations

from typing import Final

from engine.calls.format import CallFormat
from engine.calls.hermes import Hermes

FORMATS: Final[tuple[CallFormat, ...]] = (Hermes(),)
