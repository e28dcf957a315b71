"""`/v1/messages`: what is taken, what the engine is told, how answers and errors look, with the stock client too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

from engine.messages import CallDelta, Failed, Finished, ImagePart, TextDelta, TextPart
from engine.reports import Usage
from engine.tools import ToolCall
from service.messages.frame import usage_body
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, Step, accepted, fails, finished
from tests.service.images.pdfs import plain_pdf
from tests.service.messages.asking import BY_URL, CALLED, CLICK, IMAGE, body, result, text, user
from tests.service.uploads.sending import upload


def calls(reason: Any = "tool_calls", arguments: str = '{"x": 7}') -> Any:
    def script(request: Any) -> list[Step]:
        end = finished(request, 9)
        return [
            accepted(request),
            TextDelta(request.id, "Now."),
            CallDelta(request.id, 0, "click", ""),
            CallDelta(request.id, 0, None, arguments[:4]),
            CallDelta(request.id, 0, None, arguments[4:]),
            Finished(request.id, reason, end.usage, end.report, end.timings),
        ]

    return script


@pytest.fixture
def sdk(start: Start) -> Iterator[Anthropic]:
    api = start(api_keys="alice:sk-alice-1")
    with Anthropic(base_url=str(api.base_url), api_key="sk-alice-1", max_retries=0) as client:
        yield client


def test_an_answer(sdk: Anthropic, engine: FakeEngine) -> None:
    """The client sends its key as `x-api-key`, and headers of its own."""
    message = sdk.messages.create(model="test-reader", **body(user([IMAGE, text("What is the total?")])))
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [
        ("text", "The total is 42.")
    ]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    assert (usage.input_tokens, read, written, usage.output_tokens) == (12, 0, 36, 4)
    assert message.model_extra is not None
    assert message.model_extra["kv_report"]["images"][0]["outcome"] == "miss"
    assert len(engine.requests[0].images) == 1
    again = sdk.messages.create(model="test-reader", **body(user([BY_URL, text("And now?")])))
    assert again.usage.cache_read_input_tokens == 32  # the same pixels, whatever way they came


def test_the_engine_is_told_what_was_asked(api: httpx.Client, engine: FakeEngine) -> None:
    fields = {
        "system": [text("Be brief.")],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "stop_sequences": ["END"],
        "cache": {"policy": "full", "mode": "read"},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "metadata": {"user_id": "u"},
    }
    api.post("/v1/messages", json=body(user("a"), {"role": "assistant", "content": "b"}, user("c"), **fields))
    request = engine.requests[0]
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "user"]
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (50, 0.5, 0.9, 7)
    assert sampling.stop == ("END",)
    assert sampling.constraint is not None and json.loads(sampling.constraint.text) == {"type": "object"}
    assert (request.cache.policy, request.cache.mode) == ("full", "read")


def test_tools_calls_and_results_with_images(api: httpx.Client, engine: FakeEngine) -> None:
    shot = result([text("now"), IMAGE], is_error=True)
    turns = (user("go"), CALLED, user([shot, text("and?")]))
    api.post("/v1/messages", json=body(*turns, tools=[CLICK])).raise_for_status()
    request = engine.requests[0]
    call = ToolCall("t1", "click", '{"x": 1}')
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "user"]
    assert request.messages[1].calls == (call,) and request.messages[1].parts == (TextPart("ok"),)
    assert request.messages[2].result_of == call
    assert request.messages[2].parts == (TextPart("Error: "), TextPart("now"), ImagePart(0))
    assert request.tools is not None
    assert json.loads(request.tools.known[0].definition)["function"]["parameters"] == CLICK["input_schema"]
    assert (request.tools.use, request.tools.parallel) == ("auto", True)


@pytest.mark.parametrize(
    ("choice", "use", "names", "parallel"),
    [
        ({"type": "auto"}, "auto", ("click", "say"), True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", ("click", "say"), False),
        ({"type": "tool", "name": "say"}, "required", ("say",), True),
        ({"type": "none"}, "none", ("click", "say"), True),
    ],
)
def test_which_tools_may_be_called(
    api: httpx.Client, engine: FakeEngine, choice: Any, use: str, names: tuple[str, ...], parallel: bool
) -> None:
    say = {"name": "say", "input_schema": {"type": "object"}, "type": "custom"}
    api.post("/v1/messages", json=body(tools=[CLICK, say], tool_choice=choice)).raise_for_status()
    tools = engine.requests[0].tools
    assert tools is not None
    assert (tools.use, tools.callable, tools.parallel) == (use, names, parallel)


def test_calls_in_an_answer_go_back_as_they_came(sdk: Anthropic, engine: FakeEngine) -> None:
    engine.script = calls()
    message = sdk.messages.create(model="test-reader", tools=[CLICK], **body())  # type: ignore[list-item]
    assert message.stop_reason == "tool_use"
    said, call = message.content
    assert said.type == "text" and said.text == "Now."
    assert call.type == "tool_use" and (call.name, call.input) == ("click", {"x": 7})
    assert call.id.startswith("call_")
    back = user([{"type": "tool_result", "tool_use_id": call.id, "content": "done"}])
    turns: Any = [user("go"), message.to_param(), back]
    sdk.messages.create(model="test-reader", max_tokens=5, tools=[CLICK], messages=turns)  # type: ignore[list-item]
    assert [turn.role for turn in engine.requests[1].messages] == ["user", "assistant", "tool"]


def test_arguments_that_were_cut_off_are_told(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = calls("length", '{"x": 7')
    answer = api.post("/v1/messages", json=body(tools=[CLICK])).json()
    assert answer["stop_reason"] == "max_tokens"
    assert (answer["content"][1]["input"], answer["content"][1]["partial_json"]) == ({}, '{"x": 7')


def named_events(response: httpx.Response) -> list[tuple[str, Any]]:
    found = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_the_events_of_a_stream(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = calls()
    response = api.post("/v1/messages", json=body(tools=[CLICK], stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    found = named_events(response)
    assert all(name == data["type"] for name, data in found)
    assert [name for name, _ in found] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [data["index"] for _, data in found if "index" in data] == [0, 0, 0, 1, 1, 1, 1]
    assert found[0][1]["message"]["usage"]["input_tokens"] == 12
    assert found[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert "kv_report" in found[-2][1]


def test_the_stock_client_puts_a_stream_together(sdk: Anthropic, engine: FakeEngine) -> None:
    engine.script = calls()
    with sdk.messages.stream(model="test-reader", tools=[CLICK], **body(user([IMAGE, text("go")]))) as stream:  # type: ignore[list-item]
        message = stream.get_final_message()
    said, call = message.content
    assert said.type == "text" and said.text == "Now."
    assert call.type == "tool_use" and call.input == {"x": 7}
    assert message.stop_reason == "tool_use"
    assert message.usage.cache_creation_input_tokens == 36 and message.usage.input_tokens == 12
    assert (engine.open, engine.aborted) == (0, 0)


def test_a_stop_sequence_is_named(api: httpx.Client, engine: FakeEngine) -> None:
    def script(request: Any) -> list[Step]:
        end = finished(request, 2)
        return [
            accepted(request),
            TextDelta(request.id, "a"),
            Finished(request.id, "stop", end.usage, end.report, end.timings, stop="END"),
        ]

    engine.script = script
    answer = api.post("/v1/messages", json=body(stop_sequences=["END"])).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


def test_marks_pin_images(api: httpx.Client, engine: FakeEngine) -> None:
    marked = {**IMAGE, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    short = text("x", cache_control={"type": "ephemeral"})
    api.post("/v1/messages", json=body(user([IMAGE, marked, IMAGE, short, IMAGE]))).raise_for_status()
    assert engine.requests[0].pins == (3600.0, 3600.0, 300.0, 0.0)
    automatic = body(user([IMAGE, IMAGE]), cache_control={"type": "ephemeral"})
    api.post("/v1/messages", json=automatic).raise_for_status()
    assert engine.requests[1].pins == (300.0, 300.0)


def test_counting_tokens_answers_nothing(sdk: Anthropic, engine: FakeEngine) -> None:
    turns: Any = [user([IMAGE, text("go")])]
    counted = sdk.messages.count_tokens(model="test-reader", messages=turns, tools=[CLICK])  # type: ignore[list-item]
    assert counted.input_tokens > 36
    assert engine.submitted == 0


def test_counts_add_up_to_the_prompt() -> None:
    for usage in (Usage(10, 1, 8, 4, 3), Usage(10, 1, 8, 9, 8), Usage(10, 0, 0, 0, 0)):
        told = usage_body(usage)
        assert told["input_tokens"] >= 0
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(told[part] for part in parts) == 10


def test_no_ops_are_let_through(api: httpx.Client, engine: FakeEngine) -> None:
    harmless = {
        "thinking": {"type": "disabled"},
        "service_tier": "auto",
        "mcp_servers": [],
        "container": None,
    }
    turn = user([text("x", citations=None, cache_control=None)])
    api.post("/v1/messages", json=body(turn, **harmless)).raise_for_status()


def test_errors_are_the_stock_clients_own(sdk: Anthropic, engine: FakeEngine) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        sdk.messages.create(model="test-reader", max_tokens=5, messages=[])
    assert bad.value.body["error"]["code"] == "invalid_request"  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError):
        sdk.messages.create(model="claude", **body())
    with pytest.raises(anthropic.AuthenticationError):
        sdk.with_options(api_key="wrong").messages.create(model="test-reader", **body())
    engine.script = fails("queue_full")
    with pytest.raises(anthropic.RateLimitError) as busy:
        sdk.messages.create(model="test-reader", **body())
    assert busy.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
    engine.script = fails("engine_stopped")
    with pytest.raises(anthropic.InternalServerError):
        sdk.messages.create(model="test-reader", **body())


def test_a_failure_in_a_stream_is_an_error_event(sdk: Anthropic, engine: FakeEngine) -> None:
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "one"),
        Failed(request.id, "engine_stopped", "The worker stopped."),
    ]
    with pytest.raises(anthropic.APIStatusError, match="worker"):
        list(sdk.messages.create(model="test-reader", stream=True, **body()))


def test_other_routes_below_and_methods_answer_in_the_same_shape(api: httpx.Client) -> None:
    for response, status in ((api.get("/v1/messages"), 405), (api.post("/v1/messages/none"), 404)):
        assert response.status_code == status and response.json()["type"] == "error"


def test_pings_are_events(start: Start, engine: FakeEngine) -> None:
    api = start(ping_interval=0.05)
    engine.script = lambda request: [accepted(request), 0.4, TextDelta(request.id, "a"), finished(request, 1)]
    found = named_events(api.post("/v1/messages", json=body(stream=True)))
    assert [name for name, _ in found].count("ping") >= 3


def test_an_upload_stands_for_its_pages(api: httpx.Client, engine: FakeEngine) -> None:
    source = {"type": "file", "file_id": upload(api, plain_pdf((1, 2, 3), (4, 5, 6)))["id"]}
    mark = {"type": "ephemeral"}
    document = {"type": "document", "source": source, "title": None, "citations": {"enabled": False}}
    parts = [{**document, "cache_control": mark}, {"type": "image", "source": source}, text("What is it?")]
    api.post("/v1/messages", json=body(user(parts))).raise_for_status()
    assert engine.requests[0].pins == (300.0, 300.0, 0.0, 0.0)
    unknown = body(user([{"type": "image", "source": {"type": "file", "file_id": "file-1"}}]))
    response = api.post("/v1/messages", json=unknown)
    told = response.json()["error"]
    assert (response.status_code, told["type"], told["code"]) == (404, "not_found_error", "file_not_found")
    assert told["param"] == "messages[0].content[0].source.file_id"
