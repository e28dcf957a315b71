"""Answers in the shapes of the OpenAI chat API, with what was reused beside them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from engine.messages import Accepted, CallDelta, Ended, Finished, TextDelta, TokenLogprob
from engine.reports import Explanation, ImageReport, KvReport, Timings, Usage
from engine.tools import ToolCall
from service.chat.dialect import Written, new_call_id
from service.chat.generation import Output
from service.chat.logprobs import logprob_bodies
from service.errors import ServiceError
from service.http.event_stream import DONE, OPENAI_WORDS, event, text_events

_KEY_PREFIX: Final = 16
"""Hex digits of a key that a user sees: enough to tell his images apart, not the whole name of an entry."""


class ChatFrame:
    """`Frame` of OpenAI's chat completions."""

    def __init__(self, model: str, answers: int, logprobs: bool, wants_usage: bool) -> None:
        """`answers` are as many choices; `wants_usage` adds a chunk with the usage to a stream."""
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.model = model
        self._logprobs, self._wants_usage = logprobs, wants_usage
        self._created = int(time.time())  # seconds since the epoch, the same in all chunks
        self._text_events = [self._text_event(index) for index in range(answers)]

    def whole(self, answers: Sequence[Written], end: Finished) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message_body(answer),
                "logprobs": {"content": answer.logprobs, "refusal": None} if self._logprobs else None,
                "finish_reason": answer.reason,
            }
            for index, answer in enumerate(answers)
        ]
        return {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": usage_body(end.usage),
            "kv_report": report_body(end.report, end.timings),
        }

    def begin(self, accepted: Accepted) -> Iterator[bytes]:
        for index in range(len(self._text_events)):
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def piece(self, piece: Output) -> Iterator[bytes]:
        if isinstance(piece, TextDelta):
            if piece.logprobs:
                yield self._chunk(piece.index, {"content": piece.text}, logprobs=piece.logprobs)
            else:
                yield self._text_events[piece.index](piece.text)
        elif isinstance(piece, CallDelta):
            yield self._chunk(piece.index, {"tool_calls": [_call_delta(piece)]}, logprobs=piece.logprobs)
        else:
            yield from self._end(piece)

    def fail(self, error: ServiceError) -> Iterator[bytes]:
        return OPENAI_WORDS.fail(error)

    def ping(self) -> bytes:
        return OPENAI_WORDS.ping()

    def _end(self, end: Ended | Finished) -> Iterator[bytes]:
        """The chunk with the reason of an answer's end and the log probabilities that no text came behind; that of the
        last answer carries the report."""
        if isinstance(end, Ended):
            yield self._chunk(end.index, {}, logprobs=end.logprobs, reason=end.reason)
            return
        report = {"kv_report": report_body(end.report, end.timings)}
        yield self._chunk(end.index, {}, logprobs=end.logprobs, reason=end.reason, more=report)
        if self._wants_usage:
            usage = {"choices": [], "usage": usage_body(end.usage)}
            yield event({**self._head("chat.completion.chunk"), **usage})
        yield DONE

    def _text_event(self, index: int) -> Callable[[str], bytes]:
        return text_events(lambda text: self._chunk(index, {"content": text}))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        reason: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        told = {"content": logprob_bodies(logprobs), "refusal": None} if logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}
        # With a usage chunk to come, OpenAI's other chunks say that they have none.
        usage = {"usage": None} if self._wants_usage else {}
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **(more or {}), **usage})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self.model}


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "image_tokens": usage.image_tokens,
            "text_tokens": usage.prompt_tokens - usage.image_tokens,
            "audio_tokens": 0,
        },
    }


def report_body(report: KvReport, timings: Timings) -> dict[str, Any]:
    """The `kv_report` of an answer."""
    return {
        "policy": report.policy,
        "refresh_ratio": report.refresh_ratio,
        "fallback": report.fallback,
        "visual_tokens": report.visual_tokens,
        "reused_tokens": report.reused,
        "compiled_tokens": report.compiled,
        "refreshed_tokens": report.refreshed,
        "chained_tokens": report.chained,
        "chained_exact_tokens": report.chained_exact,
        "chained_refreshed_tokens": report.chained_refreshed,
        "turns_reused_tokens": report.turns_reused,
        "refined_rows": report.refined,
        "images": [image_body(image) for image in report.images],
        "timings": {
            "queue_ms": _ms(timings.queue),
            "images_ms": _ms(timings.images),
            "ttft_ms": _ms(timings.first_token),
            "total_ms": _ms(timings.total),
        },
    }


def x_cache(images: Sequence[ImageReport]) -> str:
    """One word for a proxy's log: none, hit, partial, miss or bypass."""
    outcomes = {image.outcome for image in images}
    if not outcomes:
        return "none"
    if outcomes == {"bypass"}:
        return "bypass"
    if outcomes == {"hit"}:
        return "hit"
    return "partial" if "hit" in outcomes else "miss"


def server_timing(seconds: dict[str, float]) -> str:
    """The value of a `server-timing` header."""
    return ", ".join(f"{name};dur={_ms(value)}" for name, value in seconds.items())


def image_body(image: ImageReport) -> dict[str, Any]:
    """One image of a `kv_report`."""
    return {
        "key": image.key[:_KEY_PREFIX],
        "outcome": image.outcome,
        "reason": image.reason,
        "tier": image.tier,
        "bytes": image.bytes,
        "load_ms": _ms(image.load_seconds),
        "compile_ms": _ms(image.compile_seconds),
        "tokens": image.tokens,
        "refreshed": image.refreshed,
        "exact": image.exact,
        "chained": image.chained,
        "same_as": image.same_as,
        "explained": None if image.explained is None else _explained_body(image.explained),
    }


def _explained_body(told: Explanation) -> dict[str, Any]:
    return {
        "grid": told.grid,
        "states": list(told.states),
        "scores": told.scores,
        "drift": told.drift,
        "shares": told.shares,
    }


def _message_body(answer: Written) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.calls:
        # As OpenAI has it: who only calls says nothing, which is not the same as an empty text.
        body |= {"content": answer.text or None, "tool_calls": [_call_body(call) for call in answer.calls]}
    return body


def _call_body(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _call_delta(piece: CallDelta) -> dict[str, Any]:
    """A piece of a call; the first has what it is called."""
    function: dict[str, Any] = {"arguments": piece.arguments}
    if piece.name is None:
        return {"index": piece.call, "function": function}
    return {
        "index": piece.call,
        "id": new_call_id(),
        "type": "function",
        "function": {"name": piece.name, **function},
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
