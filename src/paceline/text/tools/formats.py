"""Formats of tool calls, chosen by the chat template, and the constraints that force a call.

These are formats of llama.cpp's common/chat.cpp and vLLM's tool parsers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from paceline.speculative.vocabulary import Vocab
from paceline.text.interface import Text
from paceline.text.messages import ToolChoice

_FENCE = "```json"
# No white space follows any: without the possessive *+ a text of spaces would take seconds.
_NAME = r"\s*+(?P<name>[A-Za-z0-9_.-]+?)\s*+"
_BRACE = r"\s*+(?=\{)"  # which begins the arguments


@dataclass(frozen=True)
class KeyValueArguments:
    """A format of arguments without JSON: `open` name `middle` value `close` each. end: ends the call.
    middle: a pattern that no longer text changes. close: forms of the mark, the longer ones first."""

    open: str
    middle: str
    close: tuple[str, ...]
    end: str


@dataclass(frozen=True)
class Thought:
    """The marks of a model's thoughts. template_marker: a text of chat templates that know them.
    content: a mark that begins content."""

    open: str
    close: str
    template_marker: str = ""
    content: str = ""

    def is_open(self, prompt: str, answer: str = "") -> bool:
        """Return whether an answer begins within a thought, after a prompt and a given beginning."""
        text = (self.open if prompt.rstrip().endswith(self.open.rstrip()) else "") + answer
        return text.rfind(self.open) > text.rfind(self.close)

    def is_closed(self, prompt: str) -> bool:
        """Return whether a prompt has a thought already."""
        return prompt.rstrip().endswith(self.close)


THINK = Thought("<think>", "</think>")
THOUGHTS = (
    Thought(
        "<|channel|>analysis<|message|>", "<|end|>", "<|channel|>analysis", "<|channel|>final<|message|>"
    ),
    Thought("<|channel>thought", "<channel|>"),
    Thought("[THINK]", "[/THINK]"),
    Thought("<|START_THINKING|>", "<|END_THINKING|>"),
    Thought("<|inner_prefix|>", "<|inner_suffix|>"),
    Thought("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    Thought("◁think▷", "◁/think▷"),
    Thought("<thinking>", "</thinking>"),
    Thought("<think>", "</think>", "</think>"),
)


def thought_of(template: str) -> Thought | None:
    """Return the marks of thoughts of models with this chat template; None if it has none."""
    return next(
        (thought for thought in THOUGHTS if (thought.template_marker or thought.open) in template), None
    )


@dataclass(frozen=True)
class ToolFormat:
    """A format of tool calls. template_markers: texts that all have to be in the chat template.
    start_markers: marks that begin calls, each with the marks that may end them, in order.
    accepts_plain_json: a JSON object with a name and arguments at the beginning of a line is a call.
    head: pattern between the start marker and the arguments, if the name is there. It ends in what always
    follows, so that more text does not change how it matches.
    quote: the mark around strings of arguments, if they are no JSON. skipped: marks that are no content.
    forced_prefix: beginning of a forced call, with {name} if the name is outside of JSON.
    keys: the JSON keys of the name and of the arguments. other_markers: other control tokens."""

    name: str
    template_markers: tuple[str, ...]
    start_markers: Mapping[str, tuple[str, ...]]
    accepts_plain_json: bool = False
    head: str = ""
    pairs: KeyValueArguments | None = None
    quote: str = '"'
    forced_prefix: str = ""
    keys: tuple[str, str] = ("name", "arguments")
    calls_are_list: bool = False
    skipped: tuple[str, ...] = ()
    other_markers: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens in a model's vocabulary."""
        marks = chain(self.start_markers, *self.start_markers.values(), self.skipped, self.other_markers)
        return tuple(dict.fromkeys(mark for mark in (*marks, self.quote) if "`" not in mark))


_TAGGED = {"<tool_call>": ("</tool_call>",)}
_KIMI_ENDS = ("<|tool_call_end|>", "<|tool_calls_section_end|>")
_DEEPSEEK_ENDS = ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK = dict.fromkeys(("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), _DEEPSEEK_ENDS)
_DEEPSEEK_HEAD = (
    r"\s*+(?:<｜tool▁call▁begin｜>)?\s*+(?:function<｜tool▁sep｜>)?"
    + _NAME
    + r"(?:<｜tool▁sep｜>)?\s*+(?:```(?:json)?)?"
    + _BRACE
)
_MISTRAL: Mapping[str, tuple[str, ...]] = {"[TOOL_CALLS]": ()}
_MISTRAL_HEAD = _NAME + r"(?:\[CALL_ID\]\s*+(?P<id>\w+))?\s*+(?:\[ARGS\])?" + _BRACE
_HARMONY = ("<|channel|>commentary to=functions.", "<|channel|>analysis to=functions.", "to=functions.")
_CHANNELS = tuple(
    f"<|channel|>{name}<|message|>" for name in ("commentary", "final", "final <|constrain|>json")
)
_CALL = "call:" + _NAME + _BRACE
_GEMMA = ("<|channel>", "<channel|>")


def _tags(name: str, start: str, end: str = "", **more: Any) -> ToolFormat:
    """Return a format with one mark before and after a call."""
    return ToolFormat(name, (start,), {start: (end,) if end else ()}, **{"forced_prefix": start, **more})


GENERIC = ToolFormat("generic", (), {_FENCE: ("```",)}, accepts_plain_json=True)
HERMES = ToolFormat(  # and Qwen, SmolLM
    "hermes",
    ("<tool_call>",),
    {**_TAGGED, _FENCE: ("```",)},
    accepts_plain_json=True,
    forced_prefix="<tool_call>\n",
)
TABLE = (
    ToolFormat(
        "mistral-args",
        ("[TOOL_CALLS]", "[ARGS]"),
        _MISTRAL,
        head=_MISTRAL_HEAD,
        forced_prefix="[TOOL_CALLS]{name}[ARGS]",
        other_markers=("[CALL_ID]", "[ARGS]"),
    ),
    _tags("mistral", "[TOOL_CALLS]", head=_MISTRAL_HEAD, calls_are_list=True),
    ToolFormat(
        "deepseek-fenced",  # V3, R1
        ("<｜tool▁call▁begin｜>", "```json"),
        _DEEPSEEK,
        head=_DEEPSEEK_HEAD,
        forced_prefix="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
        other_markers=("<｜tool▁sep｜>",),
    ),
    ToolFormat(
        "deepseek",  # V3.1
        ("<｜tool▁call▁begin｜>",),
        _DEEPSEEK,
        head=_DEEPSEEK_HEAD,
        forced_prefix="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
        other_markers=("<｜tool▁sep｜>",),
    ),
    ToolFormat(
        "kimi",
        ("<|tool_call_begin|>",),
        dict.fromkeys(("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), _KIMI_ENDS),
        head=r"\s*+(?:<\|tool_call_begin\|>)?\s*+(?P<id>(?:functions\.)?(?P<name>[A-Za-z0-9_.-]+?)(?::\d+)?)"
        r"\s*+<\|tool_call_argument_begin\|>" + _BRACE,
        forced_prefix="<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>",
        other_markers=("<|tool_call_argument_begin|>",),
    ),
    _tags("granite", "<|tool_call|>", "<|/tool_call|>", calls_are_list=True),  # and Phi-4-mini
    _tags(
        "command-r",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        calls_are_list=True,
        keys=("tool_name", "parameters"),
    ),
    _tags("gigachat", "<|function_call|>"),  # 3.1
    _tags("toolcall", "<TOOLCALL>", "</TOOLCALL>", calls_are_list=True),  # Nemotron Nano 2
    ToolFormat(
        "harmony",  # gpt-oss
        ("<|channel|>", "<|call|>"),
        dict.fromkeys(_HARMONY, ("<|call|>",)),
        head=_NAME
        + r"(?:<\|channel\|>\w+\s*+)?(?:<\|constrain\|>\w*\s*+|(?<=\s)\w+\s*+)?<\|message\|>"
        + _BRACE,
        forced_prefix="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
        skipped=(*_CHANNELS, "<|start|>assistant", "<|end|>"),
        other_markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    ),
    _tags("gemma", "<|tool_call>", "<tool_call|>", head=_CALL, quote='<|"|>', other_markers=_GEMMA),  # 4
    _tags("functiongemma", "<start_function_call>", "<end_function_call>", head=_CALL, quote="<escape>"),
    ToolFormat(
        "minimax",  # M2
        ("<minimax:tool_call>",),
        dict.fromkeys(("<minimax:tool_call>", '<invoke name="'), ("</minimax:tool_call>",)),
        head=r'\s*+(?:<invoke name=")?' + _NAME + '">',
        pairs=KeyValueArguments('<parameter name="', '">', ("</parameter>",), "</invoke>"),
    ),
    ToolFormat(
        "qwen-coder",
        ("<tool_call>", "<function=", "<parameter="),
        {**_TAGGED, "<function=": ("</tool_call>",)},
        head=r"\s*+(?:<function=)?" + _NAME + ">",
        # A value stands between newlines of its own.
        pairs=KeyValueArguments(
            "<parameter=", r">(?:\n|(?=.))", ("\n</parameter>", "</parameter>"), "</function>"
        ),
    ),
    ToolFormat(
        "glm",
        ("<tool_call>", "<arg_key>"),
        {"<tool_call>": ()},
        head=_NAME + "(?=<)",
        pairs=KeyValueArguments("<arg_key>", r"</arg_key>\s*+<arg_value>", ("</arg_value>",), "</tool_call>"),
    ),
    _tags(
        "functionary",
        "<function=",
        "</function>",
        head=_NAME + ">" + _BRACE,
        forced_prefix="<function={name}>",
    ),
    _tags("tool-calls", "<tool_calls>", "</tool_calls>", calls_are_list=True),  # Apriel, MiniMax M1
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
    return next(form for form in TABLE if all(sign in template for sign in form.template_markers))


def visible_control_tokens(
    text: Text, vocab: Vocab, form: ToolFormat, thought: Thought | None = None
) -> dict[int, bytes]:
    """Return the control tokens of the format and of thoughts, with their text for the parser."""
    marks = (*form.markers, *((thought.open, thought.close) if thought else ()))
    known = {mark: text.encode(mark, special=True, add_bos=False) for mark in marks}
    return {ids[0]: mark.encode() for mark, ids in known.items() if len(ids) == 1 and not vocab.piece(ids[0])}


@dataclass(frozen=True)
class ForcedCall:
    """A prefix of an answer, with control tokens, and a schema of the rest. format: parses both together.
    name: of the schema, in error messages."""

    prefix: str
    json_schema: dict[str, Any]
    format: ToolFormat
    name: str = "the schema of the tools"


def force_call(form: ToolFormat, choice: ToolChoice) -> ForcedCall | None:
    """Return the constraints of a required call; None if no call is required."""
    tools = {
        f"tools[{number}]": tool["function"]
        for number, tool in enumerate(choice.tools)
        if tool["function"]["name"] in choice.required_names
    }
    if not tools:
        return None
    schemas: dict[str, dict[str, Any]] = {
        place: {"type": "object", **(tool.get("parameters") or {"properties": {}}), "$comment": place}
        for place, tool in tools.items()
    }
    outside = form.pairs is not None or form.quote != '"' or "{name}" in form.forced_prefix
    if len(tools) == 1 and "{name}" in form.forced_prefix:
        ((place, tool),) = tools.items()
        begin = form.forced_prefix.replace("{name}", tool["name"])
        return ForcedCall(begin, schemas[place], form, f"{place}: the schema of its parameters")
    name, arguments = form.keys
    calls = []
    for number, (place, tool) in enumerate(tools.items()):
        # References in a function's schema are relative to this id.
        given = {"$id": f"http://localhost/{number}", **schemas[place]}
        fields = {name: {"const": tool["name"]}, arguments: given}
        form_of_call = {"type": "object", "properties": fields, "required": [name, arguments]}
        calls.append({**form_of_call, "additionalProperties": False})
    schema: dict[str, Any] = {"anyOf": calls}
    if form.calls_are_list and not outside:
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return ForcedCall("", schema, GENERIC) if outside else ForcedCall(form.forced_prefix, schema, form)
