"""From the wire of `/v1/messages` to the one conversation inside, and its options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from engine.messages import Constraint, Sampling
from engine.messages import Part as Said
from engine.messages import TextPart as SaidText
from engine.tools import ToolCall
from service.chat.conversation import source_of
from service.chat.dialect import Options
from service.chat.image_list import ImageList
from service.chat.options import cache_options
from service.chat.turns import Conversation, Turns
from service.errors import RequestError
from service.messages.schemas import (
    CallPart,
    CountRequest,
    MessagesRequest,
    Part,
    ResultPart,
    Seen,
    TextPart,
    Turn,
)

_FAILED = "Error: "
"""Stands before the result of a tool that failed: the templates of models have no other mark."""


def read_options(body: CountRequest) -> Options:
    return Options(
        model=body.model,
        salt=body.salt,
        stream=isinstance(body, MessagesRequest) and bool(body.stream),
        sampling=_sampling(body) if isinstance(body, MessagesRequest) else Sampling(),
        cache=cache_options(body.cache),
        tools=body.known_tools(),
    )


def read_conversation(body: CountRequest, images: ImageList) -> Conversation:
    """Raises `RequestError` for what cannot be answered as a conversation."""
    turns = Turns("messages", images)
    if body.system:
        turns.say("system", list(_shown(body.system, "system", turns)), "system")
    for i, turn in enumerate(body.messages):
        place = f"messages[{i}].content"
        if turn.role == "user":
            _user(turn, place, turns)
        else:
            _assistant(turn, place, turns)
    if body.cache_control is not None:
        turns.pin(body.cache_control.seconds)
    return turns.conversation()


def _sampling(body: MessagesRequest) -> Sampling:
    form = body.output_config.format if body.output_config is not None else None
    return Sampling(
        max_tokens=body.max_tokens,
        temperature=body.temperature or 0.0,
        top_p=body.top_p or 1.0,
        top_k=body.top_k or 0,
        stop=tuple(body.stop_sequences or ()),
        constraint=None if form is None else Constraint("json_schema", json.dumps(form.schema_)),
    )


def _user(turn: Turn, place: str, turns: Turns) -> None:
    """Results of tools come before what the user says."""
    said: list[Said] = []
    results = 0
    for i, block in enumerate(_blocks(turn)):
        param = f"{place}[{i}]"
        if isinstance(block, CallPart):
            raise _misplaced(param, "'tool_use' blocks are the assistant's")
        if isinstance(block, ResultPart):
            if said:
                raise _misplaced(param, "'tool_result' blocks come first in a turn")
            results += 1
            _result(block, param, turns)
        else:
            said += _shown([block], place, turns, first=i)
    if said or not results:
        turns.say("user", said, place)


def _assistant(turn: Turn, place: str, turns: Turns) -> None:
    said: list[Said] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(_blocks(turn)):
        param = f"{place}[{i}]"
        if isinstance(block, ResultPart):
            raise _misplaced(param, "'tool_result' blocks are the user's")
        if isinstance(block, CallPart):
            arguments = json.dumps(block.input, ensure_ascii=False)
            calls.append(turns.call(block.id, block.name, arguments, f"{param}.input"))
        elif calls:
            raise _misplaced(param, "'tool_use' blocks come last in a turn")
        else:
            said += _shown([block], place, turns, first=i)
    turns.say("assistant", said, place, calls)


def _result(block: ResultPart, param: str, turns: Turns) -> None:
    parts: list[Said] = [SaidText(_FAILED)] if block.is_error else []
    parts += _shown(block.content or "", f"{param}.content", turns)
    turns.result(block.tool_use_id, parts, f"{param}.tool_use_id")
    if block.cache_control is not None:
        turns.pin(block.cache_control.seconds)


def _blocks(turn: Turn) -> Sequence[Part]:
    return [TextPart(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content


def _shown(blocks: str | Sequence[Seen], place: str, turns: Turns, first: int = 0) -> Iterator[Said]:
    """What `blocks` say and show; `first` is the number of the first in `place`."""
    if isinstance(blocks, str):
        yield SaidText(blocks)
        return
    for i, block in enumerate(blocks, first):
        if isinstance(block, TextPart):
            yield SaidText(block.text)
        else:
            reference, field = source_of(block.source)
            yield from turns.images(reference, f"{place}[{i}].{field}")
        if block.cache_control is not None:
            turns.pin(block.cache_control.seconds)


def _misplaced(param: str, text: str) -> RequestError:
    return RequestError("invalid_request", f"Blocks that do not fit together: {text}.", param=param)
