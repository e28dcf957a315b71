"""What an answer says beside its text: every number under its own name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.messages import CacheOptions, Finished, Sampling
from engine.reports import ImageReport, KvReport, Timings, Usage
from service.chat.answer import ChatFrame, report_body, usage_body, x_cache
from service.chat.conversation import read_conversation
from service.chat.image_list import ImageList
from service.chat.options import read_options
from service.chat.schemas import ChatRequest
from service.errors import RequestError
from service.files.record import FileRecord
from service.http.event_stream import DONE
from service.http.validation import validated

IMAGE = ImageReport("ab" * 32, "hit", "old", "lmdb", 11, 0.0121, 0.0132, 14, 5, True, 6, 0)
REPORT = KvReport("conduit", 0.2, (IMAGE,), 21, 22, 23, 24, "refused", 25, 26, 27, 28, 29)
TIMINGS = Timings(0.031, 0.032, 0.033, 0.034)


def test_a_report_has_every_number_under_its_own_name() -> None:
    assert report_body(REPORT, TIMINGS) == {
        "policy": "conduit",
        "refresh_ratio": 0.2,
        "fallback": "refused",
        "visual_tokens": 21,
        "reused_tokens": 22,
        "compiled_tokens": 23,
        "refreshed_tokens": 24,
        "chained_tokens": 25,
        "chained_exact_tokens": 26,
        "chained_refreshed_tokens": 27,
        "refined_rows": 28,
        "turns_reused_tokens": 29,
        "images": [
            {
                "key": "ab" * 8,
                "outcome": "hit",
                "reason": "old",
                "tier": "lmdb",
                "bytes": 11,
                "load_ms": 12.1,
                "compile_ms": 13.2,
                "tokens": 14,
                "refreshed": 5,
                "exact": True,
                "chained": 6,
                "same_as": 0,
                "explained": None,
            }
        ],
        "timings": {"queue_ms": 31.0, "images_ms": 32.0, "ttft_ms": 33.0, "total_ms": 34.0},
    }


def test_usage_has_every_number_under_its_own_name() -> None:
    assert usage_body(Usage(100, 7, 60, 50, 9)) == {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "total_tokens": 107,
        "prompt_tokens_details": {
            "cached_tokens": 50,
            "cache_write_tokens": 9,
            "image_tokens": 60,
            "text_tokens": 40,
            "audio_tokens": 0,
        },
    }


def test_the_last_chunk_has_the_reason_why_it_ended() -> None:
    end = Finished("r", "length", Usage(1, 1, 0, 0, 0), REPORT, TIMINGS)
    closing, done = ChatFrame("model", 1, False, False).piece(end)
    assert done == DONE
    told = json.loads(closing.removeprefix(b"data: "))
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["kv_report"] == report_body(REPORT, TIMINGS)


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ((), "none"),
        (("hit", "hit"), "hit"),
        (("hit", "miss"), "partial"),
        (("hit", "bypass"), "partial"),
        (("miss", "outdated"), "miss"),
        (("corrupt",), "miss"),
        (("bypass", "bypass"), "bypass"),
        (("bypass", "miss"), "miss"),
    ],
)
def test_one_word_says_what_the_store_had(outcomes: tuple[Any, ...], word: str) -> None:
    images = [ImageReport("k", outcome, "", None, 0, 0.0, 0.0, 1, 0, False) for outcome in outcomes]
    assert x_cache(images) == word


def chat(**fields: Any) -> ChatRequest:
    return validated({"prompt": "x", **fields}, ChatRequest)


def options(**cache: Any) -> CacheOptions:
    return read_options(chat(cache=cache)).cache


def test_every_option_of_the_cache_reaches_the_engine_and_what_is_left_out_is_the_default() -> None:
    said = options(
        mode="rewrite",
        policy="impact",
        refresh_ratio=0.3,
        refine=5,
        options={"correction": "shift"},
        chain="exact",
        pin=True,
        ttl=90,
        turns="reuse",
        explain=True,
    )
    assert said.explain and said.turns == "reuse"
    assert (said.mode, said.policy, said.refresh_ratio, said.refine) == ("rewrite", "impact", 0.3, 5)
    assert (said.options, said.chain, said.pin_seconds) == ({"correction": "shift"}, "exact", 90)
    assert options() == CacheOptions()
    for cache in (None, {"mode": "read"}):
        assert read_options(chat(cache=cache, prompt_cache_key="k")).cache.hint == "k"
    assert options(pin=False).pin_seconds is None and options(pin=True).pin_seconds == 1800


def sampling(**fields: Any) -> Sampling:
    return read_options(chat(**fields)).sampling


def test_every_option_of_sampling_reaches_the_engine_under_its_own_name() -> None:
    said = sampling(
        max_tokens=3,
        temperature=0.5,
        top_p=0.6,
        top_k=-1,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        logit_bias={"7": -2},
        logprobs=True,
        seed=9,
        stop="end",
        stop_token_ids=[5],
        min_tokens=2,
        ignore_eos=True,
    )
    assert (said.stop_tokens, said.min_tokens, said.ignore_eos) == ((5,), 2, True)
    assert (said.max_tokens, said.temperature, said.top_p, said.top_k) == (3, 0.5, 0.6, 0)
    assert (said.min_p, said.repetition_penalty) == (0.1, 1.2)
    assert (said.presence_penalty, said.frequency_penalty) == (0.3, 0.4)
    assert (said.logit_bias, said.logprobs, said.seed, said.stop) == (((7, -2),), 0, 9, ("end",))
    assert sampling(logprobs=True, top_logprobs=4).logprobs == 4
    assert sampling(max_completion_tokens=4).max_tokens == 4
    assert (sampling().logprobs, sampling(stop=["a", "b"]).stop) == (None, ("a", "b"))


def nobody(name: str) -> FileRecord:
    raise AssertionError("no file is named")


def test_of_too_many_images_the_first_beyond_the_limit_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        read_conversation(chat(images=["a", "b", "c", "d"]), ImageList(nobody, 2))
    assert (caught.value.code, caught.value.param) == ("too_many_images", "images[2]")
    assert len(read_conversation(chat(images=["a", "b"]), ImageList(nobody, 2)).images) == 2
