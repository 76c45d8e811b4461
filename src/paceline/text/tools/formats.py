"""Formats of tool calls, chosen by the chat template, and the constraints that force a call.

These are the JSON formats of llama.cpp's common/chat.cpp and vLLM's tool parsers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from paceline.speculative.vocabulary import Vocab
from paceline.text.interface import Text
from paceline.text.messages import ToolChoice

_FENCE = "```json"
_NAME = r"(?P<name>[A-Za-z0-9_.-]+?)"


@dataclass(frozen=True)
class KeyValueArguments:
    """A format of arguments without JSON: `open` name `middle` value `close` each.
    before, after: text around the function's name, of which `before` is optional. end: ends the call."""

    before: str
    after: str
    open: str
    middle: tuple[str, ...]
    close: str
    end: str

    def pattern(self, longest: int) -> re.Pattern[str]:
        """Return the pattern of one pair. longest: characters of a name."""
        middle = r"\s*".join(map(re.escape, self.middle))
        pair = f"{re.escape(self.open)}(.{{0,{longest}}}?){middle}(.*?){re.escape(self.close)}"
        return re.compile(pair, re.DOTALL)


@dataclass(frozen=True)
class ToolFormat:
    """A format of tool calls. template_markers: texts that all have to be in the chat template.
    start_markers: marks that begin calls, each with the marks that may end them, in order.
    accepts_plain_json: a JSON object with a name and arguments at the beginning of a line is a call.
    name_pattern: pattern between the start marker and the arguments, if the name is there.
    forced_prefix: beginning of a forced call, with {name} if the name is outside of JSON.
    keys: the JSON keys of the name and of the arguments. other_markers: other control tokens."""

    name: str
    template_markers: tuple[str, ...]
    start_markers: Mapping[str, tuple[str, ...]]
    accepts_plain_json: bool = False
    name_pattern: str = ""
    pairs: KeyValueArguments | None = None
    forced_prefix: str = ""
    keys: tuple[str, str] = ("name", "arguments")
    calls_are_list: bool = False
    other_markers: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens in a model's vocabulary."""
        marks = chain(self.start_markers, *self.start_markers.values(), self.other_markers)
        return tuple(dict.fromkeys(mark for mark in marks if "`" not in mark))


_TAGGED = {"<tool_call>": ("</tool_call>",)}
_KIMI_ENDS = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
_DEEPSEEK_ENDS = ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK = dict.fromkeys(("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), _DEEPSEEK_ENDS)
_DEEPSEEK_HEAD = (
    r"(?:<｜tool▁call▁begin｜>)?\s*(?:function<｜tool▁sep｜>)?\s*"
    + _NAME
    + r"\s*(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?)?"
)
_MISTRAL: Mapping[str, tuple[str, ...]] = {"[TOOL_CALLS]": ()}
_MISTRAL_HEAD = _NAME + r"\s*(?:\[CALL_ID\]\s*(?P<id>\w+))?\s*(?:\[ARGS\])?"

GENERIC = ToolFormat("generic", (), {_FENCE: ("```",)}, accepts_plain_json=True)
HERMES = ToolFormat(
    "hermes",
    ("<tool_call>",),
    {**_TAGGED, _FENCE: ("```",)},
    accepts_plain_json=True,
    forced_prefix="<tool_call>\n",
)  # and Qwen, SmolLM
TABLE = (
    ToolFormat(
        "mistral-args",
        ("[TOOL_CALLS]", "[ARGS]"),
        _MISTRAL,
        name_pattern=_MISTRAL_HEAD,
        forced_prefix="[TOOL_CALLS]{name}[ARGS]",
        other_markers=("[CALL_ID]", "[ARGS]"),
    ),
    ToolFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        _MISTRAL,
        name_pattern=_MISTRAL_HEAD,
        forced_prefix="[TOOL_CALLS]",
        calls_are_list=True,
    ),
    ToolFormat(
        "deepseek-fenced",  # V3, R1
        ("<｜tool▁call▁begin｜>", "```json"),
        _DEEPSEEK,
        name_pattern=_DEEPSEEK_HEAD,
        forced_prefix="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        other_markers=("<｜tool▁sep｜>",),
    ),
    ToolFormat(
        "deepseek",  # V3.1
        ("<｜tool▁call▁begin｜>",),
        _DEEPSEEK,
        name_pattern=_DEEPSEEK_HEAD,
        forced_prefix="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        other_markers=("<｜tool▁sep｜>",),
    ),
    ToolFormat(
        "kimi",
        ("<|tool_call_begin|>",),
        dict.fromkeys(("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), _KIMI_ENDS),
        name_pattern=r"(?:<\|tool_call_begin\|>)?\s*(?P<id>(?:functions\.)?"
        + _NAME
        + r"(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
        forced_prefix="<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>",
        other_markers=("<|tool_call_argument_begin|>",),
    ),
    ToolFormat(
        "granite",  # and Phi-4-mini
        ("<|tool_call|>",),
        {"<|tool_call|>": ("<|/tool_call|>",)},
        forced_prefix="<|tool_call|>",
        calls_are_list=True,
    ),
    ToolFormat(
        "command-r",
        ("<|START_ACTION|>",),
        {"<|START_ACTION|>": ("<|END_ACTION|>",)},
        forced_prefix="<|START_ACTION|>",
        keys=("tool_name", "parameters"),
        calls_are_list=True,
    ),
    ToolFormat(
        "qwen-coder",
        ("<tool_call>", "<function=", "<parameter="),
        {**_TAGGED, "<function=": ("</tool_call>",)},
        pairs=KeyValueArguments("<function=", ">", "<parameter=", (">",), "</parameter>", "</function>"),
    ),
    ToolFormat(
        "glm",
        ("<tool_call>", "<arg_key>"),
        {"<tool_call>": ()},
        pairs=KeyValueArguments(
            "", "", "<arg_key>", ("</arg_key>", "<arg_value>"), "</arg_value>", "</tool_call>"
        ),
    ),
    ToolFormat(
        "functionary",
        ("<function=",),
        {"<function=": ("</function>",)},
        name_pattern=_NAME + ">",
        forced_prefix="<function={name}>",
    ),
    HERMES,
    ToolFormat(
        "llama3",
        ("<|start_header_id|>ipython",),
        {"<|python_tag|>": ()},
        accepts_plain_json=True,
        keys=("name", "parameters"),
    ),
    GENERIC,
)


def format_of(template: str) -> ToolFormat:
    """Return the format of models with this chat template."""
    return next(one for one in TABLE if all(sign in template for sign in one.template_markers))


def visible_control_tokens(text: Text, vocab: Vocab, form: ToolFormat) -> dict[int, bytes]:
    """Return the control tokens of the format, with their text for the parser."""
    known = {mark: text.encode(mark, special=True, add_bos=False) for mark in form.markers}
    return {ids[0]: mark.encode() for mark, ids in known.items() if len(ids) == 1 and not vocab.piece(ids[0])}


@dataclass(frozen=True)
class ForcedCall:
    """A prefix of an answer, with control tokens, and a schema of the rest. format: parses both together."""

    prefix: str
    json_schema: dict[str, Any]
    format: ToolFormat


def force_call(form: ToolFormat, choice: ToolChoice) -> ForcedCall | None:
    """Return the constraints of a required call; None if no call is required."""
    tools = [tool["function"] for tool in choice.tools if tool["function"]["name"] in choice.required_names]
    if not tools:
        return None
    outside = form.pairs is not None or "{name}" in form.forced_prefix
    if len(tools) == 1 and "{name}" in form.forced_prefix:
        begin = form.forced_prefix.replace("{name}", tools[0]["name"])
        return ForcedCall(begin, _parameters(tools[0]), form)
    name, arguments = form.keys
    calls = []
    for number, tool in enumerate(tools):
        # References in a function's schema are relative to this id.
        given = {"$id": f"http://localhost/{number}", **_parameters(tool)}
        fields = {name: {"const": tool["name"]}, arguments: given}
        form_of_call = {"type": "object", "properties": fields, "required": [name, arguments]}
        calls.append({**form_of_call, "additionalProperties": False})
    schema: dict[str, Any] = {"anyOf": calls}
    if form.calls_are_list and not outside:
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return ForcedCall("", schema, GENERIC) if outside else ForcedCall(form.forced_prefix, schema, form)


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **(function.get("parameters") or {"properties": {}})}
