"""Tool calls through the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
from gguf_files import write_llama
from paceline.api import LLM
from paceline.server.convert import from_chat
from paceline.server.schemas import ChatRequest
from paceline.server.settings import ServerLimits
from tool_templates import CHATML, TEMPLATES

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather in a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Bonn", "Trier"]}, "days": {"enum": [1, 2]}},
            "required": ["town", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time_now", "description": "Tells the time."}}


@pytest.mark.parametrize(
    ("name", "is_control"), [("<think>", False), ("[THINK]", True)], ids=["text", "control"]
)
@pytest.mark.parametrize(
    "opening", ["", "<think>\\n", "<think>\\n\\n</think>\\n\\n"], ids=["free", "open", "closed"]
)
def test_thoughts_are_parsed_and_a_grammar_begins_after_them(
    name: str, is_control: bool, opening: str, tmp_path: Path
) -> None:
    open_, close = name, f"{name[0]}/{name[1:]}"
    template = CHATML.replace("assistant\\n", f"assistant\\n{opening}").replace("think", name[1:-1])
    template = template.replace("<THINK>", open_).replace("</THINK>", close) + "{# " + open_ + close + " #}"
    controls = (open_, close) if is_control else ()
    made = write_llama(tmp_path / "a.gguf", control_tokens=controls, chat_template=template)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with paceline.load(made, drafters="none", threads=1, n_ctx=512) as llm:
        free = from_chat(llm, ServerLimits(), ChatRequest(**chat), "", [])
        schema: Any = {"response_format": {"type": "json_object"}}
        bound = from_chat(llm, ServerLimits(), ChatRequest(**chat, **schema), "", [])
        began = [*chat["messages"], {"role": "assistant", "content": f"{open_}a"}]
        going_on = {"messages": began, "continue_final_message": True}
        later = from_chat(llm, ServerLimits(), ChatRequest(**chat | going_on), "", []).new_parser
        assert later
        assert later().parse(f"b{close}c").reasoning == "b"
        ends = [llm.prompt_end(one.requests[0].prompt) for one in (free, bound)]
    assert free.new_parser
    assert bound.new_parser
    is_open = opening.endswith("<think>\\n")
    answer = free.new_parser().parse(f"a{close}b" if is_open else f"{open_}a{close}b")
    assert (answer.reasoning, answer.content) == ("a", "b")
    grammar = bound.requests[0].grammar
    assert grammar is not None
    assert grammar.matches("{}") == (not is_open or is_control)
    assert grammar.matches(f"a{close}\n\n{{}}") == (is_open and not is_control)
    assert grammar.matches(f"{open_}a{close}\n\n{{}}") == ((is_open or not opening) and not is_control)
    assert ends[1].endswith(ends[0][-20:] + (f"{close}\n\n" if is_open and is_control else ""))
    assert bound.new_parser().parse("{}").content == ("" if is_open and not is_control else "{}")


DEMANDING = """{% for tool in tools or [] %}{{ "" + tool.function.description }}
{%- for name, one in tool.function.parameters.properties.items() %}{{ name + one.description + one.type }};
{%- endfor %}
{%- endfor %}"""


def test_a_tool_lacks_nothing_that_a_template_expects(tmp_path: Path) -> None:
    types = {
        "a": {"type": ["integer", "null"]},
        "b": {"anyOf": [{"type": "number"}]},
        "c": True,
        "d": {"enum": ["x"]},
    }
    functions = [{"name": "f", "parameters": {"properties": types}}, {"name": "g"}]
    tools = [{"type": "function", "function": function} for function in functions]
    made = write_llama(tmp_path / "a.gguf", chat_template=TEMPLATES["hermes"] + DEMANDING)
    with paceline.load(made, drafters="none", threads=1, n_ctx=2048) as llm:
        text = b"".join(map(llm.target.vocab.piece, llm.chat_tokens("hi", tools))).decode()
    assert "ainteger;bnumber;cstring;dstring;" in text


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[LLM]:
    """A model to which [TOOL_CALLS] and [ARGS] are control tokens, with a template of its own for tools."""
    made = write_llama(
        tmp_path / "marked.gguf",
        control_tokens=("[TOOL_CALLS]", "[ARGS]"),
        chat_template=CHATML,
        metadata={"tokenizer.chat_template.tool_use": TEMPLATES["mistral-args"]},
    )
    with paceline.load(made, drafters="none", threads=1, n_ctx=512) as llm:
        yield llm


def test_control_tokens_of_a_format_become_text_where_that_is_asked_for(marked: LLM) -> None:
    encode = marked.target.text.encode
    (calls,), (args,) = encode("[TOOL_CALLS]", special=True), encode("[ARGS]", special=True)
    assert marked.visible_control_tokens == {calls: b"[TOOL_CALLS]", args: b"[ARGS]"}
    request: dict[str, Any] = {"max_tokens": 2, "logit_bias": {calls: 1000.0}, "ignore_eos": True}
    assert marked.generate("a", **request).text == ""
    assert marked.generate("a", spelled=marked.visible_control_tokens, **request).text == "[TOOL_CALLS]" * 2
