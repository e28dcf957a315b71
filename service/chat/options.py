"""The options of `/v1/chat` in the engine's words."""

from __future__ import annotations

from typing import Final

from engine.messages import CacheOptions, Sampling
from service.chat.cache_schemas import CacheControls
from service.chat.dialect import Options
from service.chat.form_schemas import constraint_of
from service.chat.retention import retained, retention_seconds
from service.chat.schemas import ChatRequest
from service.chat.tool_schemas import tools_of

_PIN_SECONDS: Final = 1800.0


def read_options(chat: ChatRequest) -> Options:
    return Options(
        model=chat.model,
        salt=chat.salt,
        stream=bool(chat.stream),
        sampling=_sampling(chat),
        cache=retained(
            cache_options(chat.cache, chat.prompt_cache_key), retention_seconds(chat.prompt_cache_retention)
        ),
        template=chat.chat_template_kwargs or {},
        tools=tools_of(chat.tools, chat.tool_choice, chat.parallel_tool_calls),
        answers=chat.n or 1,
        priority=chat.priority or 0,
    )


def cache_options(asked: CacheControls | None, hint: str | None = None) -> CacheOptions:
    """`hint` is what prompts that belong together have in common."""
    if asked is None:
        return CacheOptions(hint=hint)
    return CacheOptions(
        mode=asked.mode or "auto",
        policy=asked.policy,
        refresh_ratio=asked.refresh_ratio,
        refine=asked.refine,
        options=dict(asked.options or {}),
        chain=asked.chain,
        turns=asked.turns,
        explain=bool(asked.explain),
        pin_seconds=(asked.ttl or _PIN_SECONDS) if asked.pin else None,
        hint=hint,
    )


def _sampling(chat: ChatRequest) -> Sampling:
    return Sampling(
        max_tokens=chat.token_limit,
        temperature=chat.temperature or 0.0,
        top_p=chat.top_p or 1.0,
        top_k=max(0, chat.top_k or 0),  # vLLM writes "all tokens" as -1
        min_p=chat.min_p or 0.0,
        repetition_penalty=chat.repetition_penalty or 1.0,
        presence_penalty=chat.presence_penalty or 0.0,
        frequency_penalty=chat.frequency_penalty or 0.0,
        logit_bias=tuple((int(token), value) for token, value in (chat.logit_bias or {}).items()),
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        seed=chat.seed,
        constraint=constraint_of(chat.response_format, chat.structured_outputs),
        stop_tokens=tuple(chat.stop_token_ids or ()),
        min_tokens=chat.min_tokens or 0,
        ignore_eos=bool(chat.ignore_eos),
        stop=(chat.stop,) if isinstance(chat.stop, str) else tuple(chat.stop or ()),
    )
