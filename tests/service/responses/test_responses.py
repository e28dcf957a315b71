"""`/v1/responses`: what is taken, what the engine is told, how answers and events look, with the stock client too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from engine.messages import CallDelta, Failed, Finished, ImagePart, TextDelta, TextPart, TokenLogprob
from engine.tools import ToolCall
from tests.service.asking import RED, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, Step, accepted, fails, finished
from tests.service.images.pdfs import plain_pdf
from tests.service.uploads.sending import upload

CLICK: dict[str, Any] = {
    "type": "function",
    "name": "click",
    "description": "Clicks.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "strict": True,
}
SAY: dict[str, Any] = {"type": "function", "name": "say", "parameters": {"type": "object"}, "strict": False}
IMAGE: dict[str, Any] = {"type": "input_image", "image_url": RED, "detail": "auto"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "click", "arguments": '{"x": 1}'}


def text(said: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": said}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def result(output: object = "done", call: str = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": output}


def calls(reason: Any = "tool_calls", *before: str) -> Any:
    def script(request: Any) -> list[Step]:
        end = finished(request, 9)
        return [
            accepted(request),
            *(TextDelta(request.id, said) for said in before),
            CallDelta(request.id, 0, "click", ""),
            CallDelta(request.id, 0, None, '{"x": '),
            CallDelta(request.id, 0, None, "7}"),
            CallDelta(request.id, 1, "say", "{}"),
            Finished(request.id, reason, end.usage, end.report, end.timings),
        ]

    return script


def stream_events(response: httpx.Response) -> list[Any]:
    found = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


@pytest.fixture
def sdk(start: Start) -> Iterator[OpenAI]:
    api = start(api_keys="alice:sk-alice-1")
    with OpenAI(
        base_url=f"{str(api.base_url).rstrip('/')}/v1", api_key="sk-alice-1", max_retries=0
    ) as client:
        yield client


def test_an_answer(sdk: OpenAI, engine: FakeEngine) -> None:
    asked: Any = [user([IMAGE, text("What is the total?")])]
    response = sdk.responses.create(model="test-reader", input=asked, instructions="Be brief.")
    assert response.output_text == "The total is 42."
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (48, 4)
    details = response.usage.input_tokens_details
    assert (details.cached_tokens, details.cache_write_tokens) == (0, 36)
    assert response.model_extra is not None
    assert response.model_extra["kv_report"]["images"][0]["outcome"] == "miss"
    assert [message.role for message in engine.requests[0].messages] == ["system", "user"]
    assert engine.requests[0].messages[1].parts == (ImagePart(0), TextPart("What is the total?"))


def test_the_engine_is_told_what_was_asked(api: httpx.Client, engine: FakeEngine) -> None:
    fields = {
        "max_output_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
        "text": {
            "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
        },
        "cache": {"policy": "full", "mode": "read"},
        "prompt_cache_key": "mine",
        "metadata": {"a": "b"},
    }
    body = api.post("/v1/responses", json={"input": "go", **fields}).raise_for_status().json()
    sampling = engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.logprobs) == (20, 0.5, 0.9, 3)
    assert sampling.constraint is not None and json.loads(sampling.constraint.text) == {"type": "object"}
    cache = engine.requests[0].cache
    assert (cache.policy, cache.mode, cache.hint) == ("full", "read", "mine")
    repeated = ("max_output_tokens", "temperature", "top_p", "text", "metadata", "store", "background")
    assert {name: body[name] for name in repeated} == {
        **{name: fields[name] for name in repeated if name in fields},
        "store": False,
        "background": False,
    }


def test_items_are_turns(api: httpx.Client, engine: FakeEngine) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        user("go"),
        {
            "type": "message",
            "role": "assistant",
            "content": [text("ok", "output_text")],
            "status": "completed",
        },
        CALL,
        {**CALL, "call_id": "c2", "name": "say", "arguments": "{}", "id": "fc_1"},
        result([text("now"), IMAGE], "c2"),
        result(),
        user("and?"),
    ]
    api.post("/v1/responses", json={"input": items, "tools": [CLICK, SAY]}).raise_for_status()
    request = engine.requests[0]
    first, second = ToolCall("c1", "click", '{"x": 1}'), ToolCall("c2", "say", "{}")
    roles = ["system", "user", "assistant", "tool", "tool", "user"]
    assert [message.role for message in request.messages] == roles
    assert request.messages[2].parts == (TextPart("ok"),)
    assert request.messages[2].calls == (first, second)
    assert [message.result_of for message in request.messages[3:5]] == [first, second]
    assert request.messages[4].parts == (TextPart("now"), ImagePart(0))


@pytest.mark.parametrize(
    ("choice", "use", "names", "parallel"),
    [
        (None, "auto", ("click", "say"), True),
        ("required", "required", ("click", "say"), True),
        ("none", "none", ("click", "say"), True),
        ({"type": "function", "name": "say"}, "required", ("say",), False),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "say"}]},
            "auto",
            ("say",),
            True,
        ),
    ],
)
def test_which_tools_may_be_called(
    api: httpx.Client, engine: FakeEngine, choice: Any, use: str, names: tuple[str, ...], parallel: bool
) -> None:
    body = {"input": "go", "tools": [CLICK, SAY], "tool_choice": choice}
    api.post("/v1/responses", json=body).raise_for_status()
    tools = engine.requests[0].tools
    assert tools is not None
    assert (tools.use, tools.callable, tools.parallel) == (use, names, parallel)


def test_calls_in_an_answer_go_back_as_they_came(sdk: OpenAI, engine: FakeEngine) -> None:
    engine.script = calls()
    tools: Any = [CLICK, SAY]
    response = sdk.responses.create(model="test-reader", input="go", tools=tools)
    made = [item for item in response.output if item.type == "function_call"]
    assert [(item.name, item.arguments, item.status) for item in made] == [
        ("click", '{"x": 7}', "completed"),
        ("say", "{}", "completed"),
    ]
    assert len(response.output) == 2 and response.output_text == ""
    back: Any = [user("go"), *(item.model_dump() for item in response.output)]
    back += [result(call=item.call_id) for item in made]
    sdk.responses.create(model="test-reader", input=back, tools=tools)
    assert [turn.role for turn in engine.requests[1].messages] == ["user", "assistant", "tool", "tool"]


def test_an_answer_may_be_sent_back_as_an_item(sdk: OpenAI, engine: FakeEngine) -> None:
    first = sdk.responses.create(model="test-reader", input="go")
    back: Any = [user("go"), *(item.model_dump() for item in first.output), user("and?")]
    sdk.responses.create(model="test-reader", input=back)
    assert [turn.role for turn in engine.requests[1].messages] == ["user", "assistant", "user"]
    assert engine.requests[1].messages[1].parts == (TextPart("The total is 42."),)


def test_log_probabilities_are_those_of_the_text(api: httpx.Client, engine: FakeEngine) -> None:
    def script(request: Any) -> list[Step]:
        end = finished(request, 2)
        return [
            accepted(request),
            TextDelta(request.id, "a", (TokenLogprob("a", -0.5, (("b", -1.0),)),)),
            CallDelta(request.id, 0, "click", "{}", (TokenLogprob("{}", -0.25),)),
            Finished(request.id, "tool_calls", end.usage, end.report, end.timings),
        ]

    engine.script = script
    asked = {"input": "go", "tools": [CLICK], "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    body = api.post("/v1/responses", json=asked).json()
    (token,) = body["output"][0]["content"][0]["logprobs"]
    assert (token["token"], token["logprob"], token["top_logprobs"][0]["token"]) == ("a", -0.5, "b")
    streamed = stream_events(api.post("/v1/responses", json={**asked, "stream": True}))
    assert streamed[-1]["response"]["output"][0]["content"][0]["logprobs"] == [token]


def test_an_answer_that_was_cut_off_is_incomplete(sdk: OpenAI, engine: FakeEngine) -> None:
    engine.script = calls("length")
    response = sdk.responses.create(model="test-reader", input="go", max_output_tokens=9)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in response.output if item.type == "function_call"] == [
        "completed",
        "incomplete",
    ]


def test_the_events_of_a_stream(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = calls("tool_calls", "No", "w.")
    body = {"input": "go", "tools": [CLICK, SAY], "stream": True}
    found = stream_events(api.post("/v1/responses", json=body))
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    last = found[-1]["response"]
    assert found[6]["text"] == "Now." == last["output"][0]["content"][0]["text"]
    assert [item["type"] for item in last["output"]] == ["message", "function_call", "function_call"]
    assert [event["output_index"] for event in found if "output_index" in event] == [0] * 7 + [1] * 5 + [
        2
    ] * 4
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    assert "kv_report" in last and last["usage"]["output_tokens"] == 9
    assert found[0]["response"]["status"] == "in_progress" and found[0]["response"]["output"] == []


def test_the_stock_client_puts_a_stream_together(sdk: OpenAI, engine: FakeEngine) -> None:
    with sdk.responses.stream(model="test-reader", input="go") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "The total is 42."
    engine.script = calls("tool_calls", "Now.")
    tools: Any = [CLICK, SAY]
    with sdk.responses.stream(model="test-reader", input="go", tools=tools) as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    made = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
    assert made == [("click", '{"x": 7}'), ("say", "{}")]
    assert (engine.open, engine.aborted) == (0, 0)


def test_a_failure_in_a_stream_ends_it(sdk: OpenAI, engine: FakeEngine) -> None:
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "one"),
        Failed(request.id, "engine_stopped", "The worker stopped."),
    ]
    events = list(sdk.responses.create(model="test-reader", input="go", stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None and last.response.error.message == "The worker stopped."


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no input": ({}, "missing_parameter", "input"),
    "no items": ({"input": []}, "invalid_request", "input"),
    "a number": ({"input": 5}, "invalid_request", "input"),
    "blank": ({"input": " "}, "invalid_prompt", "input"),
    "unknown": ({"input": "x", "tempreture": 1}, "unknown_parameter", "tempreture"),
    "an earlier answer": (
        {"input": "x", "previous_response_id": "resp_1"},
        "unsupported_parameter",
        "previous_response_id",
    ),
    "to be kept": ({"input": "x", "store": True}, "unsupported_parameter", "store"),
    "in the background": ({"input": "x", "background": True}, "unsupported_parameter", "background"),
    "a conversation": ({"input": "x", "conversation": "conv_1"}, "unsupported_parameter", "conversation"),
    "thoughts": ({"input": "x", "reasoning": {"effort": "high"}}, "unsupported_parameter", "reasoning"),
    "cut": ({"input": "x", "truncation": "auto"}, "unsupported_parameter", "truncation"),
    "an image of nothing": (
        {"input": [user([{"type": "input_image"}])]},
        "invalid_request",
        "image_url",
    ),
    "a document by content": (
        {"input": [user([{"type": "input_file", "file_id": "file-1", "file_data": "x"}])]},
        "unknown_parameter",
        "input[0].content[0].file_data",
    ),
    "a reference": ({"input": [{"type": "item_reference", "id": "x"}]}, "invalid_request", "input[0]"),
    "a search": ({"input": "x", "tools": [{"type": "web_search"}]}, "invalid_request", "tools[0]"),
    "two of a name": ({"input": "x", "tools": [SAY, SAY]}, "invalid_request", "tools[1]"),
    "a choice of nothing": ({"input": "x", "tool_choice": "required"}, "invalid_request", "tool_choice"),
    "another tool": (
        {"input": "x", "tools": [SAY], "tool_choice": {"type": "function", "name": "fly"}},
        "invalid_request",
        "tool_choice",
    ),
    "log probabilities alone": ({"input": "x", "top_logprobs": 3}, "invalid_request", "top_logprobs"),
    "other contents": (
        {"input": "x", "include": ["file_search_call.results"]},
        "invalid_request",
        "include[0]",
    ),
    "the assistant alone": ({"input": [{"role": "assistant", "content": "y"}]}, "invalid_prompt", "input"),
    "a result of nothing": ({"input": [user("x"), result()]}, "invalid_prompt", "input[1].call_id"),
    "no result": ({"input": [user("x"), CALL, user("y")]}, "invalid_prompt", "input[2].content"),
    "arguments": (
        {"input": [user("x"), {**CALL, "arguments": "["}, result()]},
        "invalid_request",
        "input[1].arguments",
    ),
    "a policy": ({"input": "x", "cache": {"policy": "paper"}}, "unknown_policy", "cache.policy"),
    "salts": ({"input": "x", "cache_salt": "a", "cache": {"salt": "b"}}, "invalid_request", "cache_salt"),
}


@pytest.mark.parametrize(("asked", "code", "param"), CASES.values(), ids=CASES.keys())
def test_refused(api: httpx.Client, engine: FakeEngine, asked: dict[str, Any], code: str, param: str) -> None:
    error = refused(api.post("/v1/responses", json=asked), 400, code)
    assert error["param"] == param, error
    assert engine.requests == []


def test_no_ops_are_let_through(api: httpx.Client) -> None:
    harmless = {
        "store": False,
        "background": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "auto",
        "truncation": "disabled",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
    }
    api.post("/v1/responses", json={"input": "x", **harmless}).raise_for_status()


def test_errors_are_the_stock_clients_own(sdk: OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError):
        sdk.responses.create(model="test-reader", input="x", store=True)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model="gpt-4o", input="x")
    with pytest.raises(openai.AuthenticationError):
        sdk.with_options(api_key="wrong").responses.create(model="test-reader", input="x")
    engine.script = fails("queue_full")
    with pytest.raises(openai.RateLimitError):
        sdk.responses.create(model="test-reader", input="x", stream=True)


def test_an_upload_stands_for_its_pages(api: httpx.Client, engine: FakeEngine) -> None:
    name = upload(api, plain_pdf((1, 2, 3), (4, 5, 6)))["id"]
    parts = [{"type": "input_file", "file_id": name}, {"type": "input_image", "file_id": name, "pages": "2"}]
    api.post("/v1/responses", json={"input": [user([*parts, text("What is it?")])]}).raise_for_status()
    assert len(engine.requests[0].images) == 3
    unknown = {"input": [user([{"type": "input_image", "file_id": "file-1"}])]}
    error = refused(api.post("/v1/responses", json=unknown), 404, "file_not_found")
    assert error["param"] == "input[0].content[0].file_id"
