"""Whether a chat template makes use of tools, told by rendering it; and messages that do without where it
does not.

What is said instead is what Hermes and Qwen models are told: functions within <tools>, calls within
<tool_call>, their results within <tool_response>.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paceline.speculative.errors import ModelError, UsageError
from paceline.text.interface import Text
from paceline.text.messages import Message, Tool
from paceline.text.tools.formats import HERMES, ToolFormat, format_of

NAME, KEY, VALUE, RESULT, SYSTEM = "probe_tool", "probe_key", "probe_value", "probe_result", "probe_system"
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
    """What a chat template makes of tools.

    tools: it shows them. calls: it takes arguments as a "mapping" or as "text"; "" where it shows no calls.
    empty: the content of an answer of calls alone. system: it takes a system message.
    format: how the model writes calls, or is told to."""

    tools: bool
    argument_form: str
    empty_content: Message
    system: bool
    format: ToolFormat

    @property
    def native(self) -> bool:
        """Whether the template does all that tools need."""
        return self.tools and bool(self.argument_form)


def detect_tool_support(text: Text) -> ToolSupport:
    """Return what the model's chat template can do."""
    tools = NAME in _render_probe(text, [PROBE_QUESTION])
    calls, empty = _calls(text)
    system = SYSTEM in _render_probe(text, [{"role": "system", "content": SYSTEM}, PROBE_QUESTION])
    own = format_of(text.template(tools=True)) if tools and calls else HERMES
    return ToolSupport(tools, calls, empty, system, own)


def _render_probe(text: Text, messages: list[Message]) -> str:
    """ "" where the template refuses them."""
    try:
        return text.render(messages, [PROBE])
    except ModelError:
        return ""


def _calls(text: Text) -> tuple[str, Message]:
    for form, arguments in (("mapping", {KEY: VALUE}), ("text", json.dumps({KEY: VALUE}))):
        full = _render_probe(text, _conversation({"content": ""}, arguments))
        # transformers leaves out what is None, and some templates ask for it.
        empties: list[Message] = [{}, {"content": None}, {"content": ""}]
        for empty in empties:
            value = _render_probe(text, _conversation(empty, arguments))
            # Python's own spelling of a mapping, text within text, and None as a word are mistakes.
            mistaken = f"'{KEY}'" in value or f'\\"{KEY}' in value
            mistaken |= bool(full) and value.count("None") > full.count("None")
            if VALUE in value and NAME in value and RESULT in value and not mistaken:
                return form, empty
    return "", {}


def _conversation(content: Message, arguments: Any) -> list[Message]:
    call = {"id": "probe0id0", "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return [PROBE_QUESTION, {"role": "assistant", **content, "tool_calls": [call]}, PROBE_RESULT]


def adapt_messages(
    can: ToolSupport, messages: list[Message], tools: list[Tool]
) -> tuple[list[Message], list[Tool] | None]:
    """Return messages and tools as the template takes them. Where it does not show all of them, all is said
    in messages."""
    if can.native:
        return [_native_message(can, message) for message in messages], tools or None
    messages = _tool_turns_as_text(messages)
    if not tools:
        return messages, None
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _insert_instructions(messages, INTRODUCTION.format(tools=described), system=can.system), None


def _native_message(can: ToolSupport, message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    taken = {name: value for name, value in message.items() if name != "content" or value is not None}
    calls = message["tool_calls"]
    if can.argument_form == "text":
        calls = [{**one, "function": {**one["function"], "arguments": _json(one)}} for one in calls]
    return {**can.empty_content, **taken, "tool_calls": calls}


def _json(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _tool_turns_as_text(messages: list[Message]) -> list[Message]:
    """Return calls as an answer's text, and results in a row as one message of the user."""
    reported: list[Message] = []
    results = False
    for message in messages:
        selected = {
            name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")
        }
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if results:
                reported[-1]["content"] += f"\n{text}"
            else:
                reported.append({"role": "user", "content": text})
        elif "tool_calls" in message:
            calls = [_call(call) for call in message["tool_calls"]]
            reported.append({**selected, "content": "\n".join([*filter(None, [message["content"]]), *calls])})
        else:
            reported.append(selected)
        results = message["role"] == "tool"
    return reported


def _call(call: dict[str, Any]) -> str:
    name = json.dumps(call["function"]["name"])
    return f'<tool_call>\n{{"name": {name}, "arguments": {_json(call)}}}\n</tool_call>'


def _insert_instructions(messages: list[Message], introduction: str, *, system: bool) -> list[Message]:
    """Put it at the end of the system message, or before what the user says first."""
    role = "system" if system else "user"
    at = next((at for at, message in enumerate(messages) if message["role"] == role), None)
    if at is None:
        if not system:
            raise UsageError("the model takes no system message, and no user says anything: add a message")
        return [{"role": role, "content": introduction}, *messages]
    value = messages[at]["content"]
    both = f"{value}\n\n{introduction}" if system else f"{introduction}\n\n{value}"
    return [*messages[:at], {**messages[at], "content": both}, *messages[at + 1 :]]
