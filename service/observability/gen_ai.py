"""What a span of a request says in the names of OpenTelemetry's conventions for generative AI, beside our own.

Only what is known is said, and nothing of what was asked or answered. Input tokens count all of the prompt, those of a
cache among them, as the conventions have it.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.messages import Finished, Sampling

Attributes = Mapping[str, str | int | float]


def of_request(model: str, sampling: Sampling, answers: int) -> Attributes:
    """Of a request as it was understood: defaults are in it."""
    known = {
        "gen_ai.request.choice.count": answers if answers > 1 else None,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.top_k": sampling.top_k or None,
    }
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "conduit",
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        **{name: value for name, value in known.items() if value is not None},
    }


def of_answer(model: str, end: Finished) -> Attributes:
    """Of an answer; of several, all together."""
    usage, report = end.usage, end.report
    return {
        "gen_ai.response.id": end.request_id,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.text.input_tokens": usage.prompt_tokens - usage.image_tokens,
        "gen_ai.usage.image.input_tokens": usage.image_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.image.cache_read.input_tokens": report.reused + report.chained,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens,
    }
