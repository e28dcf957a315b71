"""Answers in the shapes of OpenAI's Responses API, with what was reused beside them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.messages import Accepted, CallDelta, Finished, TextDelta
from engine.reports import Usage
from engine.tools import ToolCall
from service.chat.answer import report_body
from service.chat.dialect import Written
from service.chat.generation import Output
from service.chat.logprobs import logprob_bodies
from service.errors import ServiceError
from service.http.event_stream import OPENAI_WORDS, named_event
from service.http.written_json import WrittenList


class ResponsesFrame:
    """`Frame` of `/v1/responses`. In a stream the text is item 0 and part 0 of it, where there is any; calls follow."""

    def __init__(self, model: str, asked: Mapping[str, Any]) -> None:
        """`asked` are the options that an answer repeats."""
        self.id = f"resp_{uuid.uuid4().hex}"
        self.model, self._asked = model, asked
        self._created = int(time.time())  # seconds since the epoch
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self._written = Written()

    def whole(self, answers: Sequence[Written], end: Finished) -> dict[str, Any]:
        (answer,) = answers
        status = _status(end)
        items = [_call_item(call, "completed") for call in answer.calls]
        if answer.text or not items:
            spoken = _text_part(answer.text, answer.logprobs.first(answer.spoken))
            items.insert(0, _message_item(spoken, "completed"))
        items[-1]["status"] = status  # what stands before it was whole when it began
        return self._response(status, items, end)

    def begin(self, accepted: Accepted) -> Iterator[bytes]:
        started = self._response("in_progress", [])
        yield self._event("response.created", response=started)
        yield self._event("response.in_progress", response=started)

    def piece(self, piece: Output) -> Iterator[bytes]:
        if isinstance(piece, TextDelta):
            if not self._items:
                yield from self._begin_text()
            told = logprob_bodies(piece.logprobs)
            where = {**self._where(), "content_index": 0}
            yield self._event("response.output_text.delta", **where, delta=piece.text, logprobs=told)
            self._written.add(piece)
        elif isinstance(piece, CallDelta):
            yield from self._call(piece)
        elif isinstance(piece, Finished):
            yield from self._end(piece)

    def fail(self, error: ServiceError) -> Iterator[bytes]:
        failed = self._response("failed", [])
        failed["error"] = {"code": error.code, "message": error.message}
        yield self._event("response.failed", response=failed)

    def ping(self) -> bytes:
        return OPENAI_WORDS.ping()

    def _begin_text(self) -> Iterator[bytes]:
        yield self._add({**_message_item(_text_part(""), "in_progress"), "content": []})
        where = {**self._where(), "content_index": 0}
        yield self._event("response.content_part.added", **where, part=_text_part(""))

    def _call(self, piece: CallDelta) -> Iterator[bytes]:
        if piece.name is not None:
            yield from self._close("completed")
        self._written.add(piece)
        if piece.name is not None:
            yield self._add(_call_item(self._written.calls[-1], "in_progress"))
        if piece.arguments:
            yield self._event(
                "response.function_call_arguments.delta", **self._where(), delta=piece.arguments
            )

    def _end(self, end: Finished) -> Iterator[bytes]:
        status = _status(end)
        self._written.add(end)
        if not self._items:
            yield from self._begin_text()
        yield from self._close(status)
        yield self._event(f"response.{status}", response=self._response(status, self._items, end))

    def _close(self, status: str) -> Iterator[bytes]:
        """End the item that was written last."""
        if not self._items:
            return
        item, where = self._items[-1], self._where()
        if item["type"] == "message":
            part = _text_part(self._written.text, self._written.logprobs.first(self._written.spoken))
            item |= {"status": status, "content": [part]}
            whole = {**where, "content_index": 0}
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._event("response.output_text.done", **whole, **text)
            yield self._event("response.content_part.done", **whole, part=part)
        else:
            call = self._written.calls[-1]
            item |= {"status": status, "arguments": call.arguments}
            told = {"name": call.name, "arguments": call.arguments}
            yield self._event("response.function_call_arguments.done", **where, **told)
        yield self._event("response.output_item.done", output_index=where["output_index"], item=item)

    def _add(self, item: dict[str, Any]) -> bytes:
        self._items.append(item)
        index = len(self._items) - 1
        return self._event("response.output_item.added", output_index=index, item=dict(item))

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})

    def _response(
        self, status: str, output: Sequence[Mapping[str, Any]], end: Finished | None = None
    ) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        body = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self.model,
            "error": None,
            "incomplete_details": cut,
            "output": list(output),
            **self._asked,
            "usage": None,
        }
        if end is None:
            return body
        return {
            **body,
            "usage": usage_body(end.usage),
            "kv_report": report_body(end.report, end.timings),
        }


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "image_tokens": usage.image_tokens,
            "text_tokens": usage.prompt_tokens - usage.image_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _status(end: Finished) -> str:
    return "incomplete" if end.reason == "length" else "completed"


def _text_part(text: str, logprobs: WrittenList | tuple[()] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _message_item(part: dict[str, Any], status: str) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [part],
    }


def _call_item(call: ToolCall, status: str) -> dict[str, Any]:
    return {
        "id": f"fc_{uuid.uuid4().hex}",
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }
