"""Answers in the shapes of Anthropic's Messages API, with what was reused beside them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from engine.messages import Accepted, CallDelta, Ended, EndReason, Finished, TextDelta
from engine.reports import Usage
from engine.tools import ToolCall
from service.chat.answer import report_body
from service.chat.dialect import Written, new_call_id
from service.chat.generation import Output
from service.errors import ServiceError
from service.http.error_shapes import anthropic_error
from service.http.event_stream import named_event

_REASONS: Final[Mapping[EndReason, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class MessagesFrame:
    """`Frame` of `/v1/messages`."""

    def __init__(self, model: str) -> None:
        self.id = f"msg_{uuid.uuid4().hex}"
        self.model = model
        self._block = -1
        self._open: str | None = None

    def whole(self, answers: Sequence[Written], end: Finished) -> dict[str, Any]:
        (answer,) = answers
        text = [{"type": "text", "text": answer.text}] if answer.text else []
        return {
            **self._message([*text, *map(_call_body, answer.calls)], usage_body(end.usage)),
            **_ending(end),
            "kv_report": report_body(end.report, end.timings),
        }

    def begin(self, accepted: Accepted) -> Iterator[bytes]:
        # What of the prompt comes from the store is not known yet: the last usage of a stream says it.
        counted = usage_body(Usage(accepted.prompt_tokens, 0, 0, 0, 0))
        yield _event("message_start", message=self._message([], counted))
        yield self.ping()

    def piece(self, piece: Output) -> Iterator[bytes]:
        if isinstance(piece, TextDelta):
            if self._open != "text":
                yield from self._start({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        elif isinstance(piece, CallDelta):
            if piece.name is not None:
                block = {"type": "tool_use", "id": new_call_id(), "name": piece.name, "input": {}}
                yield from self._start(block)
            if piece.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": piece.arguments})
        elif isinstance(piece, Finished):
            yield from self._end(piece)

    def fail(self, error: ServiceError) -> Iterator[bytes]:
        yield named_event("error", anthropic_error(error.code, error.message))

    def ping(self) -> bytes:
        return _event("ping")

    def _end(self, end: Finished) -> Iterator[bytes]:
        yield from self._stop()
        told = {"usage": usage_body(end.usage), "kv_report": report_body(end.report, end.timings)}
        yield _event("message_delta", delta=_ending(end), **told)
        yield _event("message_stop")

    def _start(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._stop()
        self._block, self._open = self._block + 1, block["type"]
        yield _event("content_block_start", index=self._block, content_block=block)

    def _stop(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._block, delta=delta)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def usage_body(usage: Usage) -> dict[str, Any]:
    """`input_tokens` are those that were neither read nor written: the three add up to the prompt."""
    read = min(usage.cached_tokens, usage.prompt_tokens)
    written = min(usage.cache_write_tokens, usage.prompt_tokens - read)
    return {
        "input_tokens": usage.prompt_tokens - read - written,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.completion_tokens,
    }


def _ending(end: Ended | Finished) -> dict[str, Any]:
    reason = "stop_sequence" if end.stop is not None else _REASONS[end.reason]
    return {"stop_reason": reason, "stop_sequence": end.stop}


def _call_body(call: ToolCall) -> dict[str, Any]:
    """Arguments that `max_tokens` cut off are no JSON: they are told as the text that there is."""
    block: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name}
    try:
        return {**block, "input": json.loads(call.arguments)}
    except ValueError:
        return {**block, "input": {}, "partial_json": call.arguments}


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})
