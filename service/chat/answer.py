"""Answers in the shapes of the OpenAI chat API, with what was reused beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine.messages import Ended, Finished, TextDelta, TokenLogprob
from engine.reports import Explanation, ImageReport, KvReport, Timings, Usage

_KEY_PREFIX: Final = 16
"""Hex digits of a key that a user sees: enough to tell his images apart, not the whole name of an entry."""


@dataclass(slots=True)
class Written:
    """One of a request's answers while it comes; `reason` of its end once it has."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: str | None = None

    def add(self, piece: TextDelta | Ended | Finished) -> None:
        self.logprobs += piece.logprobs
        if isinstance(piece, TextDelta):
            self.text += piece.text
        else:
            self.reason = piece.reason


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """What all chunks of one answer have in common. `created` is in seconds since the epoch."""

    id: str
    model: str
    created: int

    def completion(self, answers: Sequence[Written], logprobs: bool, end: Finished) -> dict[str, Any]:
        """All answers whole, as one JSON body, with `logprobs` if they were asked for."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": _logprobs_body(answer.logprobs) if logprobs else None,
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

    def opening(self, index: int) -> dict[str, Any]:
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        return self._chunk(index, {"content": text}, logprobs=logprobs)

    def closing(self, end: Ended | Finished) -> dict[str, Any]:
        """The chunk with the reason of an answer's end and the log probabilities that no text came behind; that of the
        last answer carries the report."""
        chunk = self._chunk(end.index, {}, logprobs=end.logprobs, reason=end.reason)
        if isinstance(end, Ended):
            return chunk
        return {**chunk, "kv_report": report_body(end.report, end.timings)}

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_body(usage)}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        reason: str | None = None,
    ) -> dict[str, Any]:
        told = _logprobs_body(logprobs) if logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


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


def _logprobs_body(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        {**_token_body(token.token, token.logprob), "top_logprobs": [_token_body(*top) for top in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _token_body(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
