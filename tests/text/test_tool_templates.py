"""Tools through chat templates: as transformers renders them, what a template uses, and doing without."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.text.interface import Text
from paceline.text.messages import Message, Tool, parse_messages
from paceline.text.template_process import render
from paceline.text.tools.formats import GENERIC, HERMES, THINK
from paceline.text.tools.parser import AnswerParser
from paceline.text.tools.support import adapt_messages, detect_tool_support
from tool_templates import CHATML, TEMPLATES, tokenizer_of


def tool(name: str, description: str, required: Sequence[str] = (), **properties: Any) -> Tool:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOWN = {"type": "string", "description": "Its name"}
DAYS = {"type": "integer", "enum": [1, 2, 3]}
TEXT = 'The weather in a town <today> & "tomorrow", e.g. in Köln.'
WEATHER = tool("weather", TEXT, ["town"], town=TOWN, days=DAYS)
TIME = tool("time_now", "The time.")
TOOLS = [WEATHER, TIME]
DOCUMENT = {"title": "a", "text": "b"}
ASKED: Message = {"role": "user", "content": "Is it raining in Köln?"}


def call(name: str, arguments: Any, id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


CALL = call("weather", '{"town": "Köln \\"am Rhein\\"", "days": 2}', "functions.weather:0")
CALLED: Message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Message = {"role": "tool", "tool_call_id": "functions.weather:0", "content": '{"rain": true}'}
TURNS = parse_messages([ASKED, CALLED, RESULT, {"role": "assistant", "content": "Yes."}, ASKED])


class Templated(Text):
    """The Text of a model with this template, as far as rendering goes."""

    def __init__(self, template: str) -> None:
        self._template = template

    def template(self, *, tools: bool = False) -> str:
        return self._template

    def bos_and_eos(self) -> tuple[str, str]:
        return "<s>", "</s>"

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        raise NotImplementedError

    def piece(self, token: int) -> bytes:
        raise NotImplementedError


def taken(template: str, messages: list[Message]) -> tuple[list[Message], list[Tool] | None]:
    """Adapt messages and tools to the template, with ids in Mistral's form for Mistral."""
    can = detect_tool_support(Templated(template))
    if can.format.name.startswith("mistral"):
        for long, short in (("functions.weather:0", "abcdefgh0"), ("functions.time_now:1", "abcdefgh1")):
            messages = json.loads(json.dumps(messages).replace(long, short))
    return adapt_messages(can, messages, TOOLS)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False, "documents": [DOCUMENT]}])
def test_what_is_rendered_is_what_transformers_renders(name: str, variables: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer = tokenizer_of(TEMPLATES[name])
    messages, tools = taken(TEMPLATES[name], TURNS)
    for given in (tools, None):
        told: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True, **variables}
        if any(None in message.values() for message in messages):  # apply_chat_template would leave it out
            told |= {"chat_template": TEMPLATES[name], "bos_token": "<s>", "eos_token": "</s>"}
            del told["tokenize"]
            theirs = render_jinja_template([messages], given, **told)[0][0]
        else:
            theirs = tokenizer.apply_chat_template(messages, tools=given, **told)
        ours = render(TEMPLATES[name], messages, given, **variables, bos_token="<s>", eos_token="</s>")
        assert ours == theirs
        assert ("time_now" in ours) == (given is not None)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_for_tools_is_known_for_one(name: str) -> None:
    can = detect_tool_support(Templated(TEMPLATES[name]))
    assert can.native
    assert can.format.name == name
    assert can.argument_form == ("text" if name.startswith("deepseek") else "mapping")
    assert can.empty_content == ({"content": None} if name == "deepseek-fenced" else {})


ENDS = ["</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<｜end▁of▁sentence｜>", "<|end_of_text|>", "[e~["]
ENDS += ["<|END_OF_TURN_TOKEN|>", "<|call|>", "<|message_sep|>", "</assistant>", "<seed:eos>", "<|role_end|>"]
ENDS += ["<SPECIAL_12>", "<sep>", "<end_of_sentence>", "<turn|>", "<|tool_response>"]
# Templates of models, where llama.cpp's sources are at hand. Some have a format that is not known here.
OTHERS = sorted(Path(os.environ.get("LLAMA_CPP", "none"), "models", "templates").glob("*.jinja"))
ALL_TEMPLATES = TEMPLATES | {file.stem: file.read_text("utf-8") for file in OTHERS}
UNKNOWN = ("]<]minimax[>[", "<role>", "<|START_THINKING|><|END_THINKING|>")


@pytest.mark.parametrize("name", ALL_TEMPLATES)
def test_calls_and_thoughts_are_read_back_from_what_the_template_writes(name: str) -> None:
    template, said = ALL_TEMPLATES[name], {**CALLED, "reasoning_content": "Hm."}
    can = detect_tool_support(Templated(template))
    if not can.native or can.format == GENERIC or any(mark in template for mark in UNKNOWN):
        pytest.skip("another format, or none")
    said["tool_calls"] = [CALL, call("time_now", "{}", "functions.time_now:1")]
    if can.format.name == "llama3":  # one at a time
        del said["tool_calls"][1:]
    messages, tools = taken(template, parse_messages([ASKED, said]))
    given: dict[str, Any] = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "enable_thinking": True,
        "thinking": True,
    }
    prompt = render(template, messages[:1], tools, **given)
    whole = render(template, messages, tools, add_generation_prompt=False, **given)
    thought = can.thought or THINK
    thinking, start = thought.is_open(prompt), len(prompt)
    if not whole.startswith(prompt):
        start = prompt.rfind(thought.open)
        thinking = not whole.startswith(thought.open, start)
    written = whole[start:]
    thinking &= thought.close in written  # some templates leave out the thought that they open
    for end in ENDS:
        written = written.strip().removesuffix(end)
    answer = AnswerParser(can.format, TOOLS, thought=thought, thinking=thinking).parse(written)
    assert answer.content == ""
    assert answer.reasoning == ("Hm." if "Hm." in written else "")
    made = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    wanted = [tool_call["function"] for tool_call in said["tool_calls"]]
    assert made == [(one["name"], json.loads(one["arguments"])) for one in wanted if one["name"] in written]
    if can.format.name == "kimi":
        assert [call.id for call in answer.calls] == ["functions.weather:0", "functions.time_now:1"]


@pytest.mark.parametrize("template", [CHATML, ""])
def test_a_template_without_tools_is_known_for_one(template: str) -> None:
    can = detect_tool_support(Templated(template))
    assert (can.native, can.tools, can.argument_form, can.format) == (False, False, "", HERMES)


@pytest.mark.parametrize("system", [True, False])
def test_tools_are_described_in_messages_where_a_template_shows_none(system: bool) -> None:
    can = detect_tool_support(Templated(CHATML))
    said: list[Message] = [{"role": "system", "content": "Be kind."}] if system else []
    two = [{**CALLED, "content": "Let me see."}, RESULT, {**RESULT, "content": "2"}, ASKED]
    messages, tools = adapt_messages(can, parse_messages([*said, ASKED, *two]), TOOLS)
    assert tools is None
    assert "None" not in render(CHATML, messages)
    head, question, called, results = messages[:4]
    assert (head["role"], question) == ("system", ASKED)
    for tool in TOOLS:
        assert f"\n{json.dumps(tool, ensure_ascii=False)}\n" in head["content"]
    assert head["content"].startswith("Be kind.\n\n# Tools\n" if system else "# Tools\n")
    answer = AnswerParser(HERMES, TOOLS).parse(called["content"])
    assert answer.content == "Let me see."
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [
        ("weather", {"town": 'Köln "am Rhein"', "days": 2})
    ]
    responses = (f"<tool_response>\n{result}\n</tool_response>" for result in ('{"rain": true}', "2"))
    assert results == {"role": "user", "content": "\n".join(responses)}
    assert len(messages) == 5


def test_of_several_templates_the_one_for_tools_is_used_with_tools() -> None:
    pytest.importorskip("transformers")
    from paceline.backends.transformers.text import HfText

    tokenizer = tokenizer_of({"default": CHATML, "tool_use": TEMPLATES["hermes"]})
    text = HfText(tokenizer, len(tokenizer))
    assert text.template() == CHATML
    assert detect_tool_support(text).format == HERMES
    assert detect_tool_support(text).native
    theirs = tokenizer.apply_chat_template([ASKED], tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert text.render([ASKED], TOOLS) == theirs
    assert text.render([ASKED]) == render(CHATML, [ASKED])


def test_tools_stand_first_where_a_later_system_message_is_not_the_templates() -> None:
    can = detect_tool_support(Templated("{{ messages }}"))
    chat = parse_messages([{"role": role, "content": role} for role in ("user", "system", "user")])
    messages, _ = adapt_messages(can, chat, TOOLS)
    assert messages[0]["role"] == "system"
    assert TOOLS[0]["function"]["name"] in messages[0]["content"]
