"""`POST /v1/chat` in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from service.chat.schemas import ChatRequest
from service.http.openapi import error_answers, reads
from service.http.wire import EXAMPLE_IMAGE

_CHAT_EXAMPLES: Final[dict[str, Any]] = {
    "openai": {
        "summary": "OpenAI parts, streamed",
        "value": {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": EXAMPLE_IMAGE}},
                        {"type": "text", "text": "What is the total?"},
                    ],
                }
            ],
            "stream": True,
        },
    },
    "shorthand": {
        "summary": "For curl",
        "value": {"prompt": "What is the total?", "images": [EXAMPLE_IMAGE]},
    },
    "cache": {
        "summary": "Recompute a fifth of the visual tokens",
        "value": {"prompt": "What is the total?", "images": [EXAMPLE_IMAGE], "cache": {"refresh_ratio": 0.2}},
    },
}
_CHAT_BODY: Final = reads(ChatRequest, _CHAT_EXAMPLES)
CHAT_OPERATION: Final[dict[str, Any]] = {
    **_CHAT_BODY,
    "responses": {
        "200": {
            "description": "An OpenAI chat completion with a `kv_report`, or its chunks as events.",
            "content": {"text/event-stream": {}},
        },
        **_CHAT_BODY["responses"],
        **error_answers(404, 429, 500, 503, 504),
    },
}
