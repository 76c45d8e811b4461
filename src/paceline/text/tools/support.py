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
ASKED: Message = {"role": "user", "content": "probe"}
ANSWERED: Message = {"role": "tool", "content": RESULT, "tool_call_id": "probe0id0", "name": NAME}

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
    calls: str
    empty: Message
    system: bool
    format: ToolFormat

    @property
    def native(self) -> bool:
        """Whether the template does all that tools need."""
        return self.tools and bool(self.calls)


def support(text: Text) -> ToolSupport:
    """Return what the model's chat template can do."""
    tools = NAME in _shown(text, [ASKED])
    calls, empty = _calls(text)
    system = SYSTEM in _shown(text, [{"role": "system", "content": SYSTEM}, ASKED])
    own = format_of(text.template(tools=True)) if tools and calls else HERMES
    return ToolSupport(tools, calls, empty, system, own)


def _shown(text: Text, messages: list[Message]) -> str:
    """ "" where the template refuses them."""
    try:
        return text.render(messages, [PROBE])
    except ModelError:
        return ""


def _calls(text: Text) -> tuple[str, Message]:
    for form, arguments in (("mapping", {KEY: VALUE}), ("text", json.dumps({KEY: VALUE}))):
        full = _shown(text, _conversation({"content": ""}, arguments))
        # transformers leaves out what is None, and some templates ask for it.
        empties: list[Message] = [{}, {"content": None}, {"content": ""}]
        for empty in empties:
            said = _shown(text, _conversation(empty, arguments))
            # Python's own spelling of a mapping, text within text, and None as a word are mistakes.
            mistaken = f"'{KEY}'" in said or f'\\"{KEY}' in said
            mistaken |= bool(full) and said.count("None") > full.count("None")
            if VALUE in said and NAME in said and RESULT in said and not mistaken:
                return form, empty
    return "", {}


def _conversation(content: Message, arguments: Any) -> list[Message]:
    call = {"id": "probe0id0", "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return [ASKED, {"role": "assistant", **content, "tool_calls": [call]}, ANSWERED]


def fitted(
    can: ToolSupport, messages: list[Message], tools: list[Tool]
) -> tuple[list[Message], list[Tool] | None]:
    """Return messages and tools as the template takes them. Where it does not show all of them, all is said
    in messages."""
    if can.native:
        return [_as_taken(can, message) for message in messages], tools or None
    messages = _told(messages)
    if not tools:
        return messages, None
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _introduced(messages, INTRODUCTION.format(tools=described), system=can.system), None


def _as_taken(can: ToolSupport, message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    taken = {name: value for name, value in message.items() if name != "content" or value is not None}
    calls = message["tool_calls"]
    if can.calls == "text":
        calls = [{**one, "function": {**one["function"], "arguments": _json(one)}} for one in calls]
    return {**can.empty, **taken, "tool_calls": calls}


def _json(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _told(messages: list[Message]) -> list[Message]:
    """Return calls as an answer's text, and results in a row as one message of the user."""
    told: list[Message] = []
    results = False
    for message in messages:
        kept = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
        if message["role"] == "tool":
            said = f"<tool_response>\n{message['content']}\n</tool_response>"
            if results:
                told[-1]["content"] += f"\n{said}"
            else:
                told.append({"role": "user", "content": said})
        elif "tool_calls" in message:
            calls = [_call(call) for call in message["tool_calls"]]
            told.append({**kept, "content": "\n".join([*filter(None, [message["content"]]), *calls])})
        else:
            told.append(kept)
        results = message["role"] == "tool"
    return told


def _call(call: dict[str, Any]) -> str:
    name = json.dumps(call["function"]["name"])
    return f'<tool_call>\n{{"name": {name}, "arguments": {_json(call)}}}\n</tool_call>'


def _introduced(messages: list[Message], introduction: str, *, system: bool) -> list[Message]:
    """Put it at the end of the system message, or before what the user says first."""
    role = "system" if system else "user"
    at = next((at for at, message in enumerate(messages) if message["role"] == role), None)
    if at is None:
        if not system:
            raise UsageError("the model takes no system message, and no user says anything: add a message")
        return [{"role": role, "content": introduction}, *messages]
    said = messages[at]["content"]
    both = f"{said}\n\n{introduction}" if system else f"{introduction}\n\n{said}"
    return [*messages[:at], {**messages[at], "content": both}, *messages[at + 1 :]]
