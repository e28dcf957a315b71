"""From the wire of `/v1/responses` to the one conversation inside, and its options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.messages import Part, Role, Sampling
from engine.messages import TextPart as SaidText
from engine.tools import ToolCall
from service.chat.conversation import pictures_of
from service.chat.dialect import Options
from service.chat.form_schemas import JsonSchema, constraint_of
from service.chat.image_list import ImageList
from service.chat.options import cache_options
from service.chat.retention import retained, retention_seconds
from service.chat.turns import Conversation, Turns
from service.responses.schemas import (
    CallItem,
    Content,
    MessageItem,
    ResponsesRequest,
    ResultItem,
    SchemaFormat,
    TextPart,
)

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


def read_options(body: ResponsesRequest) -> Options:
    cache = cache_options(body.cache, body.prompt_cache_key)
    return Options(
        model=body.model,
        salt=body.salt,
        stream=bool(body.stream),
        sampling=_sampling(body),
        cache=retained(cache, retention_seconds(body.prompt_cache_retention)),
        tools=body.known_tools(),
    )


def read_conversation(body: ResponsesRequest, images: ImageList) -> Conversation:
    """Raises `RequestError` for what cannot be answered as a conversation."""
    turns = Turns("input", images)
    if body.instructions:
        turns.say("system", [SaidText(body.instructions)], "instructions")
    if isinstance(body.input, str):
        turns.say("user", [SaidText(body.input)], "input")
    else:
        _read_items(body.input, turns)
    return turns.conversation()


def _sampling(body: ResponsesRequest) -> Sampling:
    form = body.text.format if body.text is not None else None
    if isinstance(form, SchemaFormat):
        named = JsonSchema(type="json_schema", json_schema=form)
        constraint = constraint_of(named, None)
    else:
        constraint = constraint_of(form, None)
    return Sampling(
        max_tokens=body.max_output_tokens,
        temperature=body.temperature or 0.0,
        top_p=body.top_p or 1.0,
        logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
        constraint=constraint,
    )


def _read_items(items: list[MessageItem | CallItem | ResultItem], turns: Turns) -> None:
    """What the assistant says and the calls right behind it are one turn."""
    said: list[Part] = []
    calls: list[ToolCall] = []
    place = ""

    def close() -> None:
        if said or calls:
            turns.say("assistant", said, place, calls)
        said.clear()
        calls.clear()

    for i, item in enumerate(items):
        param = f"input[{i}]"
        if isinstance(item, CallItem):
            place = place if said or calls else param
            calls.append(turns.call(item.call_id, item.name, item.arguments, f"{param}.arguments"))
            continue
        close()
        if isinstance(item, ResultItem):
            turns.result(
                item.call_id, list(_parts(item.output, f"{param}.output", turns)), f"{param}.call_id"
            )
        elif item.role == "assistant":
            place = f"{param}.content"
            said += _parts(item.content, place, turns)
        else:
            where = f"{param}.content"
            turns.say(_ROLES[item.role], list(_parts(item.content, where, turns)), where)
    close()


def _parts(content: Content, place: str, turns: Turns) -> Iterator[Part]:
    if isinstance(content, str):
        yield SaidText(content)
        return
    for i, part in enumerate(content):
        if isinstance(part, TextPart):
            yield SaidText(part.text)
        else:
            yield from pictures_of(part, f"{place}[{i}]", turns)
