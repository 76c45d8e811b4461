"""Tool support of a chat template, detected by rendering it, and a fallback in plain messages.

The fallback is that of Hermes and Qwen: functions in <tools>, calls in <tool_call>, results in
<tool_response>."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paceline.speculative.errors import ModelError
from paceline.text.interface import Text
from paceline.text.json_schema import property_types
from paceline.text.messages import Message, Tool
from paceline.text.tools.formats import HERMES, Thought, ToolFormat, format_of, thought_of

NAME, KEY, VALUE, RESULT = "probe_tool", "probe_key", "probe_value", "probe_result"
PROBE: Tool = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "probe",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string", "description": "probe"}}},
    },
}
PROBE_QUESTION: Message = {"role": "user", "content": "probe"}
PROBE_RESULT: Message = {"role": "tool", "content": RESULT, "tool_call_id": "probe0id0", "name": NAME}

INTRODUCTION = """# Tools

You may call one or more of these functions to help the user. They are described within <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer with a JSON object of its name and its arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <name of the function>, "arguments": <object of its arguments>}}
</tool_call>"""


@dataclass(frozen=True)
class ToolSupport:
    """Tool support of a chat template.
    tools: shows tools. argument_form: takes arguments as a "mapping" or "text"; "" if it shows no calls.
    empty_content: content of an answer with calls only. format: format of the model's calls.
    thought: marks of the model's thoughts, if it has any."""

    tools: bool
    argument_form: str
    empty_content: Message
    format: ToolFormat
    thought: Thought | None = None

    @property
    def native(self) -> bool:
        """True if the template shows tools and calls."""
        return self.tools and bool(self.argument_form)


def detect_tool_support(text: Text) -> ToolSupport:
    """Detect the tool support of a model's chat template."""
    tools = NAME in _render_probe(text, [PROBE_QUESTION])
    calls, empty = _calls(text)
    template = text.template(tools=True)
    own = format_of(template) if tools and calls else HERMES
    return ToolSupport(tools, calls, empty, own, thought_of(template))


def _render_probe(text: Text, messages: list[Message]) -> str:
    """Return the rendered messages; "" if the template refuses them."""
    try:
        return text.render(messages, [PROBE])
    except ModelError:
        return ""


def _calls(text: Text) -> tuple[str, Message]:
    for form, arguments in (("mapping", {KEY: VALUE}), ("text", json.dumps({KEY: VALUE}))):
        full = _render_probe(text, _conversation({"content": ""}, arguments))
        empty: Message
        for empty in ({}, {"content": None}, {"content": ""}):  # transformers drops None, which some need
            rendered = _render_probe(text, _conversation(empty, arguments))
            # Python's repr of a mapping, JSON within JSON, and the word None are mistakes.
            wrong = f"'{KEY}'" in rendered or f'\\"{KEY}' in rendered
            wrong |= bool(full) and rendered.count("None") > full.count("None")
            if not wrong and all(word in rendered for word in (VALUE, NAME, RESULT)):
                return form, empty
    return "", {}


def _conversation(content: Message, arguments: Any) -> list[Message]:
    call = {"id": "probe0id0", "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return [PROBE_QUESTION, {"role": "assistant", **content, "tool_calls": [call]}, PROBE_RESULT]


def adapt_messages(
    can: ToolSupport, messages: list[Message], tools: list[Tool]
) -> tuple[list[Message], list[Tool] | None]:
    """Return messages and tools for the template; without tool support, everything in messages."""
    if can.native:
        return [_native_message(can, message) for message in messages], tools or None
    messages = _tool_turns_as_text(messages)
    if not tools:
        return messages, None
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _insert_instructions(messages, INTRODUCTION.format(tools=described)), None


def complete_tool(tool: Tool) -> Tool:
    """Return a tool with what some chat templates expect: a description and one type of everything."""
    function = {"description": "", **tool["function"]}
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    properties = dict(parameters["properties"]) if isinstance(parameters["properties"], dict) else {}
    for name, schema in properties.items():
        types = property_types(parameters, name) - {"null"}
        kind = next((word for word in ("string", "number", *types) if word in types), "string")
        properties[name] = {"description": "", **(schema if isinstance(schema, dict) else {}), "type": kind}
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": properties}}}


def _native_message(can: ToolSupport, message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    taken = {name: value for name, value in message.items() if name != "content" or value is not None}
    calls = message["tool_calls"]
    if can.argument_form == "text":
        calls = [{**call, "function": {**call["function"], "arguments": _json(call)}} for call in calls]
    return {**can.empty_content, **taken, "tool_calls": calls}


def _json(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _tool_turns_as_text(messages: list[Message]) -> list[Message]:
    """Return calls as text of the answer, and consecutive results as one message of the user."""
    turns, results = list[Message](), False
    for message in messages:
        turn = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if results:
                turns[-1]["content"] += f"\n{text}"
            else:
                turns.append({"role": "user", "content": text})
        elif "tool_calls" in message:
            calls = [_call(call) for call in message["tool_calls"]]
            turns.append({**turn, "content": "\n".join([*filter(None, [message["content"]]), *calls])})
        else:
            turns.append(turn)
        results = message["role"] == "tool"
    return turns


def _call(call: dict[str, Any]) -> str:
    name = json.dumps(call["function"]["name"])
    return f'<tool_call>\n{{"name": {name}, "arguments": {_json(call)}}}\n</tool_call>'


def _insert_instructions(messages: list[Message], introduction: str) -> list[Message]:
    """Append the introduction to the first message if that is the system message, which encode_chat moves if
    the template takes none."""
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": introduction}, *messages]
    both = {**messages[0], "content": f"{messages[0]['content']}\n\n{introduction}"}
    return [both, *messages[1:]]
