"""Recorded exchanges with the server: requests of every kind, streams, and what is refused.

The model is a GGUF file with random weights and a chat template: its text means nothing, and stays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

import paceline
from gguf_files import write_llama
from goldens import matches
from paceline.server.security import SecurityRules
from serving import LONG, Served, serving

TEMPLATE = (
    "{% if tools %}{{ tools }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI: Any = [{"role": "user", "content": "ab ab ab ab"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SCHEMA: Any = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
# What differs from one exchange to the next, or depends on those before.
VOLATILE = re.compile(
    r'"(id|created|modified_at|size|timings|prompt_tokens_details)": ?("[^"]*"|\d+|\{[^{}]*\})'
)


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": HI, "max_tokens": 12, "temperature": 0, **more}


def text(**more: Any) -> dict[str, Any]:
    return {"prompt": "ab ab ab ab", "max_tokens": 12, "temperature": 0, **more}


STREAM: Any = {"stream": True, "stream_options": {"include_usage": True}}
EXCHANGES: dict[str, tuple[str, str, Any]] = {
    "health": ("GET", "/health", None),
    "models": ("GET", "/v1/models", None),
    "a model": ("GET", "/v1/models/small", None),
    "another model": ("GET", "/v1/models/large", None),
    "nothing there": ("GET", "/v1/embeddings", None),
    "another method": ("DELETE", CHAT, None),
    "tokenize": ("POST", "/tokenize", {"content": "ab ab"}),
    "detokenize": ("POST", "/detokenize", {"tokens": [5, 6, 7]}),
    "apply a template": ("POST", "/apply-template", {"messages": HI}),
    "text": ("POST", TEXT, text()),
    "text of tokens": ("POST", TEXT, text(prompt=[5, 6, 7, 5, 6, 7])),
    "two texts": ("POST", TEXT, text(prompt=["ab", "cd"])),
    "two answers": ("POST", TEXT, text(n=2, temperature=0.9, seed=3)),
    "text streamed": ("POST", TEXT, text(**STREAM)),
    "text echoed": ("POST", TEXT, text(echo=True)),
    "text logprobs": ("POST", TEXT, text(logprobs=2)),
    "text logprobs streamed": ("POST", TEXT, text(logprobs=2, **STREAM)),
    "text sampled": ("POST", TEXT, text(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=11)),
    "text penalised": ("POST", TEXT, text(presence_penalty=0.5, frequency_penalty=0.5)),
    "text biased": ("POST", TEXT, text(logit_bias={"7": 50})),
    "text stopped": ("POST", TEXT, text(stop=["R", "zz"])),
    "text stopped and streamed": ("POST", TEXT, text(stop="cR", **STREAM)),
    "text by a schema": ("POST", TEXT, text(response_format=FORM, max_tokens=40)),
    "text plain": ("POST", TEXT, text(speculative={"enabled": False})),
    "text short drafts": ("POST", TEXT, text(speculative={"n_max": 2, "drafters": ["lookup"]})),
    "chat": ("POST", CHAT, chat()),
    "chat streamed": ("POST", CHAT, chat(**STREAM)),
    "chat sampled": ("POST", CHAT, chat(temperature=1.0, seed=5)),
    "chat logprobs": ("POST", CHAT, chat(logprobs=True, top_logprobs=2)),
    "chat logprobs streamed": ("POST", CHAT, chat(logprobs=True, top_logprobs=1, **STREAM)),
    "chat by a schema": ("POST", CHAT, chat(response_format=FORM, max_tokens=40)),
    "chat by a schema, streamed": ("POST", CHAT, chat(response_format=FORM, max_tokens=40, **STREAM)),
    "chat with a tool": ("POST", CHAT, chat(tools=[TOOL])),
    "chat that must call": ("POST", CHAT, chat(tools=[TOOL], tool_choice="required", max_tokens=60)),
    "two chats": ("POST", CHAT, chat(n=2, temperature=0.7, seed=1)),
    "no prompt": ("POST", TEXT, {"max_tokens": 3}),
    "an empty prompt": ("POST", TEXT, text(prompt=[])),
    "a long prompt": ("POST", TEXT, text(prompt=[5] * 5000)),
    "a token too large": ("POST", TEXT, text(prompt=[999_999])),
    "too hot": ("POST", TEXT, text(temperature=-1)),
    "no messages": ("POST", CHAT, chat(messages=[])),
    "an unknown role": ("POST", CHAT, chat(messages=[{"role": "king", "content": "x"}])),
    "an unknown field": ("POST", CHAT, chat(colour="red")),
    "too many tokens": ("POST", CHAT, chat(max_tokens=100_000)),
    "an unknown drafter": ("POST", TEXT, text(speculative={"drafters": ["nobody"]})),
    "a schema that is none": ("POST", CHAT, chat(response_format={**FORM, "json_schema": {"name": "x"}})),
    "no JSON": ("POST", CHAT, "{"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = write_llama(tmp_path_factory.mktemp("golden") / "golden.gguf", chat_template=TEMPLATE)
    with (
        paceline.load(file, None, "lookup", sessions=2, n_ctx=512, threads=1, ngram_min=1) as llm,
        serving(llm, rules=SecurityRules(hosts=("127.0.0.1",))) as up,
    ):
        yield up


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_server_answers_as_it_did(served: Served, name: str) -> None:
    method, path, body = EXCHANGES[name]
    if body is None:
        answer = httpx2.request(method, served.url + path, timeout=LONG)
    elif isinstance(body, str):
        answer = served.post_text(path, body)
    else:
        answer = served.post(path, body)
    said: Any = VOLATILE.sub(r'"\1": 0', answer.text)
    kind = answer.headers["content-type"]
    if "json" in kind:
        said = json.loads(said)
    else:  # pieces of a stream may come together
        said = merged([json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")])
    matches("http.json", name, {"status": answer.status_code, "type": kind, "body": said})


def merged(events: list[dict[str, Any]]) -> list[Any]:
    """A stream's events as one: how many tokens come at once is the rule's matter."""
    shapes = sorted({",".join(sorted(event)) for event in events})
    text, deltas, logprobs, reasons, usage = "", set[str](), [], [], None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            text += choice.get("text") or delta.get("content") or ""
            deltas |= set(delta)
            logprobs.append(choice.get("logprobs"))
            reasons += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return [shapes, text, sorted(deltas), [logprob for logprob in logprobs if logprob], reasons, usage]
