"""Wire models of tools and of calls, in OpenAI's words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from engine.tools import Tool, Tools, ToolUse
from service.chat.form_schemas import Schema
from service.http.wire import WireModel, by_type, conflict

MOST_TOOLS: Final = 128
MAX_DEFINITIONS: Final = 512 * 1024
"""Characters of all definitions of a request as JSON."""
NAME_PATTERN: Final = r"^[a-zA-Z0-9_-]{1,64}$"
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise PydanticCustomError("unknown_variant", "a schema of an object: arguments have names")
    return schema


ToolName = Annotated[str, Field(pattern=NAME_PATTERN)]
Description = Annotated[str, Field(max_length=16 * 1024)]
Parameters = Annotated[Schema, AfterValidator(_of_an_object)]
CallId = Annotated[str, Field(min_length=1, max_length=256)]


class Function(WireModel):
    """`strict` false is followed as strictly."""

    name: ToolName
    description: Description | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class FunctionTool(WireModel):
    type: Literal["function"]
    function: Function


TaggedTool = Annotated[
    Annotated[FunctionTool, Tag("@function")],
    by_type({"function": "@function"}, "a tool of type 'function'"),
]
ToolList = Annotated[list[TaggedTool], Field(max_length=MOST_TOOLS, fail_fast=True)]


class FunctionName(WireModel):
    name: ToolName


class NamedTool(WireModel):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(WireModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]


class AllowedToolsChoice(WireModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def choice_tag(value: Any) -> str | None:
    """For a union of a word, a `function` and `allowed_tools`."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return (
        "@word" if isinstance(value, str) else f"@{kind}" if kind in ("function", "allowed_tools") else None
    )


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("@word")]
    | Annotated[NamedTool, Tag("@function")]
    | Annotated[AllowedToolsChoice, Tag("@allowed_tools")],
    Discriminator(
        choice_tag,
        custom_error_type="unknown_variant",
        custom_error_message="'none', 'auto', 'required' or an object of type 'function' or 'allowed_tools'",
    ),
]


class CalledFunction(WireModel):
    name: ToolName
    arguments: str


class CallMade(WireModel):
    """A call of an earlier answer, as it came."""

    id: CallId
    type: Literal["function"]
    function: CalledFunction


def tools_of(tools: Sequence[FunctionTool] | None, choice: object, parallel: bool | None) -> Tools | None:
    """What the engine is told, None where there are no tools. `choice` is a `ToolChoice` or None. Raises a conflict for
    fields that do not fit together."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise conflict("tool_choice", "'tool_choice' goes with 'tools'")
        return None
    known = [_tool(tool.function) for tool in tools]
    if isinstance(choice, NamedTool):
        parallel = False  # it is called once
    return chosen(known, *_use(choice, [tool.name for tool in known]), parallel)


def chosen(known: Sequence[Tool], use: ToolUse, callable_: Sequence[str], parallel: bool | None) -> Tools:
    """`known` tools in whatever dialect, checked against each other and against the choice among them."""
    names = [tool.name for tool in known]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise conflict(f"tools[{i}]", "two tools have the same name")
    if any(name not in names for name in callable_):
        raise conflict("tool_choice", "'tool_choice' names a tool that is not among 'tools'")
    if sum(len(tool.definition) for tool in known) > MAX_DEFINITIONS:
        raise conflict("tools", f"the definitions together are longer than {MAX_DEFINITIONS} characters")
    return Tools(tuple(known), use, tuple(dict.fromkeys(callable_)), parallel is not False)


def tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> Tool:
    """A tool in the engine's words."""
    schema = parameters or _NO_PARAMETERS
    function = {"name": name, **({"description": description} if description else {}), "parameters": schema}
    return Tool(name, json.dumps({"type": "function", "function": function}), json.dumps(schema))


def _tool(function: Function) -> Tool:
    return tool(function.name, function.description, function.parameters)


def _use(choice: object, names: Sequence[str]) -> tuple[ToolUse, Sequence[str]]:
    if isinstance(choice, NamedTool):
        return "required", [choice.function.name]
    if isinstance(choice, AllowedToolsChoice):
        allowed = choice.allowed_tools
        return allowed.mode, [named.function.name for named in allowed.tools]
    if choice == "none":
        return "none", names
    return "required" if choice == "required" else "auto", names
