"""Tools over the wire: what is taken, what the engine is told, how calls come back, with the stock client too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from engine.messages import CallDelta, Finished, ImagePart, TextDelta, TextPart
from engine.tools import ToolCall
from tests.service.asking import RED, events, refused, user
from tests.service.fake_engine import FakeEngine, Step, accepted, fails, finished

CLICK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "click",
        "description": "Clicks.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "strict": True,
    },
}
SAY: dict[str, Any] = {"type": "function", "function": {"name": "say"}}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "click", "arguments": '{"x": 1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "say", "arguments": "{}"}},
    ],
}
GO = {"role": "user", "content": "go"}


def result(call: str, content: object = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def calls_twice(*logprobs: Any) -> Any:
    """A script: text, and two calls in pieces."""

    def script(request: Any) -> list[Step]:
        end = finished(request, 9)
        return [
            accepted(request),
            TextDelta(request.id, "Now."),
            CallDelta(request.id, 0, "click", ""),
            CallDelta(request.id, 0, None, '{"x": '),
            CallDelta(request.id, 0, None, "7}"),
            CallDelta(request.id, 1, "say", "{}"),
            Finished(request.id, "tool_calls", end.usage, end.report, end.timings),
        ]

    return script


@pytest.fixture
def sdk(api: httpx.Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{str(api.base_url).rstrip('/')}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_the_engine_is_told_of_tools(api: httpx.Client, engine: FakeEngine) -> None:
    api.post("/v1/chat", json=user("go", tools=[CLICK, SAY])).raise_for_status()
    tools = engine.requests[0].tools
    assert tools is not None and [tool.name for tool in tools.known] == ["click", "say"]
    assert json.loads(tools.known[0].parameters) == CLICK["function"]["parameters"]
    shown = json.loads(tools.known[0].definition)
    assert shown == {"type": "function", "function": {**CLICK["function"]}} | {
        "function": {name: CLICK["function"][name] for name in ("name", "description", "parameters")}
    }
    assert json.loads(tools.known[1].parameters) == {"type": "object", "properties": {}}
    assert (tools.use, tools.callable, tools.parallel) == ("auto", ("click", "say"), True)


ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("say")]}}


@pytest.mark.parametrize(
    ("choice", "use", "callable_"),
    [
        ("none", "none", ("click", "say")),
        ("auto", "auto", ("click", "say")),
        (None, "auto", ("click", "say")),
        ("required", "required", ("click", "say")),
        (named("say"), "required", ("say",)),
        (ALLOWED, "required", ("say",)),
    ],
)
def test_which_tools_may_be_called(
    api: httpx.Client, engine: FakeEngine, choice: object, use: str, callable_: tuple[str, ...]
) -> None:
    body = user("go", tools=[CLICK, SAY], tool_choice=choice, parallel_tool_calls=False)
    api.post("/v1/chat", json=body).raise_for_status()
    tools = engine.requests[0].tools
    assert tools is not None
    assert (tools.use, tools.callable) == (use, callable_)
    assert tools.parallel is False


@pytest.mark.parametrize(
    "fields", [{"tools": []}, {"tools": None}, {"tool_choice": "none"}, {"tool_choice": "auto"}]
)
def test_no_tools_are_none(api: httpx.Client, engine: FakeEngine, fields: dict[str, Any]) -> None:
    api.post("/v1/chat", json=user("go", **fields)).raise_for_status()
    assert engine.requests[0].tools is None


def test_calls_and_results_are_turns(api: httpx.Client, engine: FakeEngine) -> None:
    shot = [{"type": "text", "text": "after"}, {"type": "image_url", "image_url": {"url": RED}}]
    turns = [GO, CALLED, result("call_b", shot), result("call_a"), {"role": "user", "content": "and?"}]
    api.post("/v1/chat", json={"messages": turns, "tools": [CLICK, SAY]}).raise_for_status()
    request = engine.requests[0]
    first, second = ToolCall("call_a", "click", '{"x": 1}'), ToolCall("call_b", "say", "{}")
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert request.messages[1].calls == (first, second) and request.messages[1].parts == ()
    # In the order of the calls: what a model reads has no ids.
    assert [message.result_of for message in request.messages[2:4]] == [first, second]
    assert request.messages[3].parts == (TextPart("after"), ImagePart(0))
    assert len(request.images) == 1


def test_a_result_may_be_the_last_word(api: httpx.Client, engine: FakeEngine) -> None:
    turns = [GO, CALLED, result("call_a", ""), result("call_b", None)]
    api.post("/v1/chat", json={"messages": turns}).raise_for_status()
    assert [message.parts for message in engine.requests[0].messages[2:]] == [(), ()]


def turns(*messages: object, **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


def call(**changes: Any) -> dict[str, Any]:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, **changes}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "another kind": (user("x", tools=[{"type": "custom"}]), "invalid_request", "tools[0]"),
    "a tool of the provider": (user("x", tools=[{"type": "web_search"}]), "invalid_request", "tools[0]"),
    "no function": (user("x", tools=[{"type": "function"}]), "missing_parameter", "tools[0].function"),
    "a name with spaces": (
        user("x", tools=[{"type": "function", "function": {"name": "a b"}}]),
        "invalid_request",
        "tools[0].function.name",
    ),
    "arguments of no object": (
        user("x", tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]),
        "invalid_request",
        "tools[0].function.parameters",
    ),
    "endless parameters": (
        user(
            "x", tools=[{"type": "function", "function": {"name": "f", "parameters": {"a": "x" * 140_000}}}]
        ),
        "invalid_request",
        "tools[0].function.parameters",
    ),
    "endless together": (
        user(
            "x",
            tools=[
                {"type": "function", "function": {"name": f"f{i}", "parameters": {"a": "x" * 110_000}}}
                for i in range(5)
            ],
        ),
        "invalid_request",
        "tools",
    ),
    "many": (user("x", tools=[SAY] * 129), "invalid_request", "tools"),
    "the same twice": (user("x", tools=[SAY, CLICK, SAY]), "invalid_request", "tools[2]"),
    "unknown in a tool": (user("x", tools=[{**SAY, "colour": 1}]), "unknown_parameter", "tools[0].colour"),
    "a choice of nothing": (user("x", tool_choice="required"), "invalid_request", "tool_choice"),
    "a choice without tools": (user("x", tool_choice=named("say")), "invalid_request", "tool_choice"),
    "an unknown choice": (
        user("x", tools=[SAY], tool_choice=named("fly")),
        "invalid_request",
        "tool_choice",
    ),
    "another word": (user("x", tools=[SAY], tool_choice="any"), "invalid_request", "tool_choice"),
    "an own kind": (user("x", tools=[SAY], tool_choice={"type": "custom"}), "invalid_request", "tool_choice"),
    "a form beside": (
        user("x", tools=[SAY], structured_outputs={"regex": "a"}),
        "invalid_request",
        "structured_outputs",
    ),
    "no end": (user("x", tools=[SAY], ignore_eos=True), "invalid_request", "ignore_eos"),
    "calls of the user": (
        turns({**call(), "role": "user"}),
        "invalid_request",
        "messages[0].tool_calls",
    ),
    "a result of the user": (
        turns({"role": "user", "content": "x", "tool_call_id": "c"}),
        "invalid_request",
        "messages[0].tool_call_id",
    ),
    "a result of nothing": (turns(GO, result("c")), "invalid_prompt", "messages[1].tool_call_id"),
    "a result twice": (
        turns(GO, call(), result("c"), result("c")),
        "invalid_prompt",
        "messages[3].tool_call_id",
    ),
    "a result without a name": (
        turns(GO, call(), {"role": "tool", "content": "x"}),
        "missing_parameter",
        "messages[2].tool_call_id",
    ),
    "no result": (turns(GO, call(), GO), "invalid_prompt", "messages[2].content"),
    "no result at the end": (turns(GO, call()), "invalid_prompt", "messages"),
    "one result of two": (turns(GO, CALLED, result("call_a")), "invalid_prompt", "messages"),
    "two calls of one id": (
        turns(GO, {**call(), "tool_calls": call()["tool_calls"] * 2}),
        "invalid_prompt",
        "messages[1].content",
    ),
    "arguments that are no JSON": (
        turns(GO, call(function={"name": "f", "arguments": "{"})),
        "invalid_request",
        "messages[1].tool_calls[0].function.arguments",
    ),
    "arguments that are no object": (
        turns(GO, call(function={"name": "f", "arguments": "[]"})),
        "invalid_request",
        "messages[1].tool_calls[0].function.arguments",
    ),
    "deep arguments": (
        turns(GO, call(function={"name": "f", "arguments": '{"a": ' * 70 + "1" + "}" * 70})),
        "invalid_request",
        "messages[1].tool_calls[0].function.arguments",
    ),
    "nothing said": (turns(GO, {"role": "assistant"}), "missing_parameter", "messages[1].content"),
}


@pytest.mark.parametrize(("body", "code", "param"), CASES.values(), ids=CASES.keys())
def test_refused(api: httpx.Client, engine: FakeEngine, body: dict[str, Any], code: str, param: str) -> None:
    error = refused(api.post("/v1/chat", json=body), 400, code)
    assert error["param"] == param
    assert engine.requests == []


def test_endless_arguments_are_refused_unread(api: httpx.Client) -> None:
    body = turns(GO, call(function={"name": "f", "arguments": "x" * (1024 * 1024 + 1)}))
    error = refused(api.post("/v1/chat", json=body), 413, "request_too_large")
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


def test_a_checkpoint_without_tools_is_a_400(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = fails("unsupported_tools", "its chat template does not show tools")
    error = refused(api.post("/v1/chat", json=user("x", tools=[SAY])), 400, "unsupported_tools")
    assert "does not show tools" in error["message"]


def test_calls_in_an_answer(sdk: OpenAI, engine: FakeEngine) -> None:
    engine.script = calls_twice()
    done = sdk.chat.completions.create(model="test-reader", messages=[GO], tools=[CLICK, SAY])  # type: ignore[list-item]
    choice = done.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Now.")
    made = [
        (c.function.name, c.function.arguments)
        for c in choice.message.tool_calls or ()
        if c.type == "function"
    ]
    assert made == [("click", '{"x": 7}'), ("say", "{}")]
    ids = {c.id for c in choice.message.tool_calls or ()}
    assert len(ids) == 2 and all(name.startswith("call_") for name in ids)
    # The answer goes back as it came.
    back = [GO, choice.message.model_dump(), *(result(c.id) for c in choice.message.tool_calls or ())]
    sdk.chat.completions.create(model="test-reader", messages=back, tools=[CLICK, SAY])  # type: ignore[arg-type]
    assert [message.role for message in engine.requests[1].messages] == ["user", "assistant", "tool", "tool"]


def test_an_answer_of_calls_only_has_no_content(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [s for s in calls_twice()(request) if not isinstance(s, TextDelta)]
    message = api.post("/v1/chat", json=user("go", tools=[SAY])).json()["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 2


def test_calls_in_a_stream(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = calls_twice()
    *chunks, done = events(api.post("/v1/chat", json=user("go", tools=[CLICK, SAY], stream=True)))
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert [piece["index"] for piece in pieces] == [0, 0, 0, 1]
    assert [piece["function"]["arguments"] for piece in pieces] == ["", '{"x": ', "7}", "{}"]
    assert [piece["function"].get("name") for piece in pieces] == ["click", None, None, "say"]
    assert [("id" in piece, piece.get("type")) for piece in pieces] == [
        (True, "function"),
        (False, None),
        (False, None),
        (True, "function"),
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "kv_report" in chunks[-1]


def test_the_stock_client_puts_streamed_calls_together(sdk: OpenAI, engine: FakeEngine) -> None:
    engine.script = calls_twice()
    with sdk.chat.completions.stream(
        model="test-reader",
        messages=[GO],  # type: ignore[list-item]
        tools=[{**CLICK, "function": {**CLICK["function"], "strict": False}}, SAY],  # type: ignore[list-item]
    ) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    made = [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    assert (message.content, made) == ("Now.", [("click", '{"x": 7}'), ("say", "{}")])


def test_cache_control_pins_the_images_up_to_it(api: httpx.Client, engine: FakeEngine) -> None:
    def image(**more: Any) -> dict[str, Any]:
        return {"type": "image", "source": {"type": "url", "url": RED}, **more}

    long, short = {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}
    parts = [
        image(),
        image(cache_control=long),
        image(),
        {"type": "text", "text": "x", "cache_control": short},
        image(),
    ]
    api.post("/v1/chat", json=user(parts)).raise_for_status()
    request = engine.requests[0]
    assert request.pins == (3600.0, 3600.0, 300.0, 0.0)
    # The same pixels are one entry, kept for the longest that anybody asked for.
    assert [request.pin_seconds(i) for i in range(4)] == [3600.0] * 4
