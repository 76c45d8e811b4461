"""The APIs of Anthropic, Ollama, llama-server and OpenAI's responses, by the programs written for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import numpy as np
import ollama
import pytest
from llama_cpp import Llama
from openai import OpenAI

import paceline
from paceline.backends.logit_drift import teacher_forced_logits
from paceline.server.apis.anthropic import MessagesRequest, to_chat
from paceline.server.app import is_named
from paceline.server.convert import from_chat
from paceline.server.schemas import ChatRequest
from paceline.server.security import SecurityRules
from paceline.speculative.errors import ModelError
from paceline.speculative.sampling import logprob
from paceline.text.messages import content_text
from real_model import smollm2
from serving import LONG, Served, serving

HI: list[Any] = [{"role": "user", "content": "Name a colour."}]
TIME: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"enum": ["utc", "local"]}},
    "required": ["zone"],
}
GREEDY: Any = {"temperature": 0}
COLD: Any = {"extra_body": GREEDY}  # the SDK has no such argument
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    rules = SecurityRules(cors=("http://app.example",))
    with (
        paceline.load(smollm2(), None, "lookup", sessions=3, n_ctx=1024, threads=1) as llm,
        serving(llm, rules=rules, names=("small", "gpt-*")) as up,
    ):
        yield up


@pytest.fixture(scope="module")
def openai(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=LONG) as client:
        yield client


@pytest.fixture(scope="module")
def claude(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=LONG) as client:
        yield client


@pytest.fixture(scope="module")
def llama(served: Served) -> Iterator[ollama.Client]:
    client = ollama.Client(served.url, timeout=LONG)
    yield client
    client._client.close()


@pytest.fixture(scope="module")
def colour(openai: OpenAI) -> str:
    """The answer to HI, by the API that the others are compared with."""
    made = openai.chat.completions.create(model="small", messages=HI, max_tokens=12, **GREEDY)
    assert made.choices[0].message.content
    return str(made.choices[0].message.content)


def test_a_response_and_its_stream_are_the_chat_s_answer(openai: OpenAI, colour: str) -> None:
    made = openai.responses.create(model="small", input="Name a colour.", max_output_tokens=12, **GREEDY)
    assert made.output_text == colour
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    with openai.responses.stream(model="small", input=HI, max_output_tokens=12, **GREEDY) as stream:
        events = list(stream)
        assert stream.get_final_response().output_text == colour
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(set(numbers))
    assert openai.responses.create(model="small", input="").output == []  # as clients try a server


def test_the_items_of_a_turn_with_tools(openai: OpenAI) -> None:
    tools: Any = [
        {"type": "function", "name": "time", "parameters": TIME, "strict": True},
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch"},
    ]
    ask: Any = {"model": "small", "tools": tools, "max_output_tokens": 40, **GREEDY}
    raw = openai.responses.with_raw_response.create(input="What time is it?", tool_choice="required", **ask)
    assert "web_search, custom" in raw.headers["x-paceline-note"]
    made = raw.parse()
    (call,) = made.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["zone"] in ("utc", "local")
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": [{"type": "input_text", "text": "noon"}],
    }
    thought: Any = {"type": "reasoning", "summary": [], "encrypted_content": None}
    items: Any = [{"role": "user", "content": "What time is it?"}, thought, call.to_dict(), result]
    assert openai.responses.create(input=items, **ask).usage.input_tokens > made.usage.input_tokens
    with openai.responses.stream(input="What time is it?", tool_choice="required", **ask) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response().output[0]
    assert "".join(pieces) == final.arguments == call.arguments  # type: ignore[union-attr]


def test_a_response_that_fails_ends_with_that(
    served: Served, openai: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ModelError("broken")

    monkeypatch.setattr(served.service.llm.target, "forward", fail)
    last: Any = list(openai.responses.create(model="small", input="x", stream=True))[-1]
    assert (last.type, last.sequence_number) == ("response.failed", 2)
    assert last.response.status == "failed"


def test_a_message_and_its_stream_are_the_chat_s_answer(claude: anthropic.Anthropic, colour: str) -> None:
    ask: Any = {"model": "small", "messages": HI, "max_tokens": 12, **COLD}
    made = claude.messages.create(**ask)
    assert (made.content[0].text, made.stop_reason) == (colour, "max_tokens")
    with claude.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == colour
        assert stream.get_final_message().usage.output_tokens == 12
    counted = claude.messages.count_tokens(model="small", messages=HI).input_tokens
    usage = made.usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    stopped = claude.messages.create(**ask | {"stop_sequences": [colour[3:6]]})
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", colour[3:6])


def test_tools_in_anthropic_s_form(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "time", "description": "The time", "input_schema": TIME}]
    ask: Any = {"model": "small", "max_tokens": 40, "tools": tools, **COLD}
    made = claude.messages.create(messages=HI, tool_choice={"type": "any"}, **ask)
    (use,) = made.content
    assert made.stop_reason == use.type == "tool_use"
    assert use.input["zone"] in ("utc", "local")
    with claude.messages.stream(messages=HI, tool_choice={"type": "tool", "name": "time"}, **ask) as stream:
        assert stream.get_final_message().content[0].input == use.input  # type: ignore[union-attr]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "no clock", "is_error": True}
    turns: Any = [
        *HI,
        {"role": "assistant", "content": [use.to_dict()]},
        {"role": "user", "content": [result]},
    ]
    assert claude.messages.create(messages=turns, **ask).role == "assistant"
    chat = to_chat(MessagesRequest(messages=turns), [])
    assert content_text("", chat.messages[-1]["content"]) == "Error: no clock"


def prompt_of(served: Served, path: str, body: dict[str, Any]) -> str:
    """Return the prompt that a request becomes, by counting its tokens and by the server's own words."""
    answer = served.post("/apply-template", body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt"])


def test_system_messages_that_come_late_are_read(served: Served) -> None:
    late = [{"role": "system", "content": "Be brief."}, *HI, {"role": "system", "content": "Use French."}]
    prompt = prompt_of(served, "/apply-template", {"messages": late})
    assert "Be brief." in prompt
    assert "Use French." in prompt
    system: Any = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=fa690;"},
        {"type": "text", "text": "Be brief."},
    ]
    count = [
        served.post("/v1/messages/count_tokens", {"messages": HI, "system": one}).json()["input_tokens"]
        for one in (system, "Be brief.")
    ]
    assert count[0] == count[1]


def test_ollama_s_client(llama: ollama.Client, colour: str) -> None:
    options: Any = {"num_predict": 12, "temperature": 0, "num_ctx": 2048}
    made = llama.chat("small:latest", HI, options=options)
    assert (made.message.content, made.done_reason, made.eval_count) == (colour, "length", 12)
    stream = llama.chat("small", HI, options=options, stream=True)
    assert "".join(part.message.content or "" for part in stream) == colour
    assert llama.generate("small", "Name a colour.", options=options).response == colour
    assert llama.generate("small").done_reason == "load"
    raw = llama.generate("small", "One, two,", raw=True, options=options, stream=True)
    assert "".join(part.response or "" for part in raw)
    shape = llama.chat("small", HI, format=TIME, options=options | {"num_predict": 30})
    assert json.loads(shape.message.content or "")["zone"] in ("utc", "local")
    assert llama.list().models[0].model == "small"
    assert "completion" in (llama.show("small").capabilities or [])
    assert llama.ps().models[0].context_length == 1024
    with pytest.raises(ollama.ResponseError, match="no model 'other'"):
        llama.chat("other", HI)
    with pytest.raises(ollama.ResponseError, match="mirostat"):
        llama.chat("small", HI, options={"mirostat": 2})


def test_llama_server_s_routes(served: Served) -> None:
    ask = {"prompt": "One, two, three,", "n_predict": 6, "temperature": 0}
    whole = served.post("/completion", ask | {"return_tokens": True, "n_probs": 2}).json()
    assert len(whole["tokens"]) == len(whole["completion_probabilities"]) == 6
    assert (whole["stop_type"], whole["prompt"]) == ("limit", ask["prompt"])
    fields = ["content", "generation_settings/n_predict"]
    some = served.post("/completion", ask | {"response_fields": fields}).json()
    assert some == {"content": whole["content"], "generation_settings/n_predict": 6}
    lines = served.post(
        "/completion", ask | {"stream": True, "return_progress": True, "n_probs": 1}
    ).text.split("\n\n")
    parts = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert parts[-1]["stop"]
    assert "completion_probabilities" not in parts[-1]  # the others have them
    assert next(part["prompt_progress"]["total"] for part in parts if "prompt_progress" in part) > 4
    prompts = [[1, 2], "three", {"prompt_string": "x"}, [4, " five"]]
    assert len(served.post("/completion", ask | {"prompt": prompts}).json()) == 4
    pieces = served.post("/tokenize", {"content": "a b", "with_pieces": True}).json()["tokens"]
    assert "".join(one["piece"] for one in pieces) == "a b"
    assert served.get("/props").json()["default_generation_settings"]["n_ctx"] == 1024
    assert [slot["is_processing"] for slot in served.get("/slots").json()] == [False] * 3
    infill = served.post("/infill", {"input_prefix": "def f(", "input_suffix": "return"})
    assert "no control tokens" in infill.json()["error"]["message"]


def test_what_changes_nothing_passes_and_what_is_left_out_is_said(served: Served, colour: str) -> None:
    harmless = {"user": "me", "verbosity": "low", "modalities": ["text"], "seed": 1.0, "stop": ["\0"] * 20}
    body = {"messages": HI, "temperature": 0, "model": "gpt-5", "max_tokens": 12}
    answer = served.post("/v1/chat/completions", body | harmless)
    assert answer.json()["choices"][0]["message"]["content"] == colour
    assert "x-paceline-note" not in answer.headers
    noted = served.post("/v1/chat/completions", body | {"flavour": 1, "stream_options": {"warmth": 2}})
    assert noted.headers["x-paceline-note"] == "unknown fields were ignored: flavour, stream_options.warmth"
    long = served.post("/v1/chat/completions", body | {"max_tokens": 32000, "stop": colour[3:6]})
    assert "max_tokens 32000 was cut to" in long.headers["x-paceline-note"]
    refused = served.post("/v1/chat/completions", body | {"modalities": ["audio"]})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {"content": [10**9], "with_pieces": True}, "the model's tokens are 0 to"),
        ("/v1/messages", {"messages": HI, "tools": [{"name": "a"}], "tool_choice": {"type": []}}, "its type"),
        ("/v1/responses", {"input": "x", "metadata": {"a": "\ud800"}}, "UTF-8"),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, "stores no responses"),
        ("/v1/embeddings", {"input": "x", "dimensions": 10**6}, "ask for no more"),
        ("/v1/embeddings", {"input": "x " * 2000}, "the context 1,024"),
        ("/v1/embeddings", {"input": [[10**9]]}, "outside the vocabulary"),
        ("/v1/embeddings", {"input": []}, "list is empty"),
    ],
)
def test_what_an_api_cannot_do(path: str, body: Any, words: str, served: Served) -> None:
    answer = served.post_text(path, json.dumps(body))
    assert answer.status_code in (400, 501)
    assert words in answer.text


def test_prompts_are_echoed_with_their_log_probabilities(served: Served, openai: OpenAI) -> None:
    """As lm-eval asks for them: the tokens of several prompts, and one more."""
    texts = ["The capital of France is Paris", "One, two, three, four, five, six, " * 20]
    prompts = [served.post("/tokenize", {"content": text}).json()["tokens"] for text in texts]
    ask: Any = {"model": "small", "echo": True, "logprobs": 1, "seed": 1, **GREEDY}
    made = openai.completions.create(prompt=prompts, max_tokens=1, **ask).choices
    target = served.service.llm.target
    for choice, text, prompt in zip(made, texts, prompts, strict=True):
        assert choice.text.startswith(text)
        known: Any = choice.logprobs
        assert (known.token_logprobs[0], known.top_logprobs[0], known.text_offset[0]) == (None, None, 0)
        assert "".join(known.tokens) == choice.text
        with served.service.llm.engine.exclusive():
            rows = teacher_forced_logits(target, prompt, 1, 1)
        plain = [logprob(row, token)[0] for row, token in zip(rows, prompt[1:], strict=True)]
        assert np.abs(np.array(known.token_logprobs[1:-1]) - plain).max() < 0.05  # bfloat16: other rows
        best = [max(top.values()) for top in known.top_logprobs[1:]]
        assert all(top >= one for top, one in zip(best, known.token_logprobs[1:], strict=True))
    whole = openai.completions.create(prompt=texts[0], max_tokens=0, **ask)
    assert whole.usage is not None
    assert (whole.choices[0].text, whole.usage.completion_tokens) == (texts[0], 0)
    assert len(whole.choices[0].logprobs.tokens) == len(prompts[0])
    for n in (0, 3):
        stream = openai.completions.create(prompt=texts[0], max_tokens=n, stream=True, **ask)
        chunks = [chunk.choices[0] for chunk in stream]
        assert chunks[0].text == texts[0]
        counts = [len(one.logprobs.tokens or ()) for one in chunks if one.logprobs is not None]
        assert sum(counts) == len(prompts[0]) + n


def test_embeddings_are_those_of_llama_cpp(served: Served, openai: OpenAI, llama: ollama.Client) -> None:
    texts = ["One, two, three.", "Rivers of Europe " * 60]
    reference = Llama(str(smollm2()), embedding=True, pooling_type=1, n_ctx=512, n_ubatch=512, verbose=False)
    expected = np.array([reference.embed(text, normalize=True) for text in texts])
    reference.close()

    def is_near(vectors: Any, n: int = 2, size: int = 576) -> bool:
        """Whether vectors have length 1 and the reference's directions, but for rounding in other passes."""
        some = expected[:n, :size] / np.linalg.norm(expected[:n, :size], axis=1, keepdims=True)
        return bool(np.all((np.array(vectors) * some).sum(axis=1) > 0.9995))

    made = openai.embeddings.create(model="small", input=texts)  # as base64
    assert is_near([one.embedding for one in made.data])
    assert made.usage.prompt_tokens > 180
    tokens = served.post("/tokenize", {"content": texts[0]}).json()["tokens"]
    short = openai.embeddings.create(model="small", input=tokens, dimensions=96, encoding_format="float")
    assert is_near([short.data[0].embedding], 1, 96)
    assert is_near(llama.embed("small", texts).embeddings)
    assert is_near([llama.embeddings("small", texts[0]).embedding], 1)
    assert is_near(served.post("/embedding", {"content": texts[0]}).json()[0]["embedding"], 1)
    assert len(llama.embed("small", "x " * 2000, dimensions=4).embeddings[0]) == 4  # cut to the context


def test_options_of_ollama_are_those_of_sampling(served: Served) -> None:
    options: dict[str, Any]
    for options in ({"n": 2}, {"body": 1}, {"tools": []}, {"reasoning_effort": "low"}):
        answer = served.post(
            "/api/chat", {"messages": HI, "stream": False, "options": options | {"num_predict": 1}}
        )
        assert answer.status_code == 200, options
        assert "unknown options" in answer.headers["x-paceline-note"]


def test_biases_and_breakers_are_shown_as_json(served: Served) -> None:
    biased = {"logit_bias": [[13, False]], "dry_multiplier": 0.5, "prompt": "x", "n_predict": 0}
    shown = served.post("/completion", biased).json()["generation_settings"]
    assert shown["logit_bias"][0]["token"] == 13
    assert "dry_breakers" not in shown


@pytest.mark.parametrize(
    ("name", "model", "known"),
    [
        ("gpt-*", "gpt-5", True),
        ("m[4bit]", "m[4bit]", True),
        ("llama3:latest", "llama3", True),
        ("a", "b", False),
    ],
)
def test_names_of_models(name: str, model: str, known: bool) -> None:
    assert is_named(model, [name]) == known
    assert is_named(f"{model}:latest", [name]) == known


def test_answers_are_parsed_with_their_control_tokens(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks of calls and thoughts are control tokens in many models, though not in this one."""
    llm = served.service.llm
    monkeypatch.setitem(vars(llm), "visible_control_tokens", {5: b"<mark>"})
    tools = [{"type": "function", "function": {"name": "time", "parameters": TIME}}]
    parsed = from_chat(llm, served.service.limits, ChatRequest(messages=HI, tools=tools), "", [])
    assert parsed.requests[0].visible_control_tokens == {5: b"<mark>"}


def test_an_image_is_refused_once(served: Served) -> None:
    picture = [{"role": "user", "content": [{"type": "text", "text": "Look."}, IMAGE]}]
    body = {"messages": picture, "max_tokens": 1}
    refused = served.post("/v1/chat/completions", body)
    assert (refused.status_code, "text only" in refused.text) == (400, True)
    later = served.post(
        "/v1/chat/completions", body | {"messages": [*picture, {"role": "assistant", "content": "?"}, *HI]}
    )
    assert later.status_code == 200
    assert "1 part of earlier messages" in later.headers["x-paceline-note"]


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/messages", {"type": "error"}),
        ("/v1/responses", {"type": "error"}),
        ("/api/chat", {}),
        ("/completion", {}),
    ],
)
def test_an_error_has_the_form_of_its_api(path: str, form: dict[str, Any], served: Served) -> None:
    for body in (
        "{",
        '{"messages": 5, "input": 5, "prompt": 5}',
        '{"model": "other", "messages": [], "prompt": ""}',
    ):
        answer = served.post_text(path, body)
        assert answer.status_code in (400, 404)
        assert {name: answer.json()[name] for name in form} == form
        error = answer.json()["error"]
        assert isinstance(error, str) == (path == "/api/chat")


def test_web_pages_of_an_origin_are_let_in(served: Served) -> None:
    asks = {"origin": "http://app.example", "access-control-request-method": "POST"}
    preflight = httpx2.options(f"{served.url}/v1/chat/completions", headers=asks)
    assert preflight.headers["access-control-allow-origin"] == asks["origin"]
    other = httpx2.get(f"{served.url}/health", headers={"origin": "http://other.example"})
    assert "access-control-allow-origin" not in other.headers
