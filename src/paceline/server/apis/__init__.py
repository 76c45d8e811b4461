"""The APIs: each a row of a table, from its own form to OpenAI's requests, and from OpenAI's deltas back.

answer.py  answers in OpenAI's deltas; parts.py: what conversions have in common; embeddings.py: of all APIs
openai.py, openai_responses.py, anthropic.py, ollama.py, llama_server.py: one API each"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.server.apis import anthropic, llama_server, ollama, openai, openai_responses
from paceline.server.apis.answer import Answers, Writer
from paceline.server.apis.parts import Notes
from paceline.server.schemas import Body, ChatRequest, CompletionRequest, FimRequest


@dataclass(frozen=True)
class Api:
    """One form of requests. to_openai: converts the body, and notes what it leaves out.
    as_lines: streams are JSON objects, one a line, not events.
    own_sampling: settings that are left out are the model's, not OpenAI's."""

    paths: tuple[str, ...]
    summary: str
    body: type[Body]
    to_openai: Callable[[Any, Notes], ChatRequest | CompletionRequest]
    writer: Callable[[Answers, str, Any], Writer]
    as_lines: bool = False
    own_sampling: bool = False


# fmt: off
APIS = (
    Api(("/v1/chat/completions", "/chat/completions"), "Chat", ChatRequest, openai.chat, openai.OpenAiWriter),
    Api(("/v1/completions",), "Complete a text", CompletionRequest, lambda it, _: it, openai.OpenAiWriter),
    Api(("/v1/fim/completions",), "Fill in the middle", FimRequest, lambda it, _: it, openai.OpenAiWriter),
    Api(("/v1/responses", "/responses"), "Respond",
        openai_responses.ResponsesRequest, openai_responses.to_chat, openai_responses.ResponsesWriter),
    Api(("/v1/messages",), "Anthropic's chats",
        anthropic.MessagesRequest, anthropic.to_chat, anthropic.MessagesWriter),
    Api(("/api/chat",), "Ollama's chats",
        ollama.OllamaChatRequest, ollama.chat_to_openai,
        ollama.OllamaWriter, as_lines=True, own_sampling=True),
    Api(("/api/generate",), "Ollama's completions", ollama.OllamaGenerateRequest, ollama.generate_to_openai,
        ollama.OllamaWriter, as_lines=True, own_sampling=True),
    Api(("/completion", "/completions"), "llama-server's completions",
        llama_server.LlamaRequest, llama_server.to_completion, llama_server.LlamaWriter, own_sampling=True),
    Api(("/infill",), "llama-server's filling in the middle",
        llama_server.InfillRequest, llama_server.to_completion, llama_server.LlamaWriter, own_sampling=True),
)
# fmt: on
CHATS = ("/v1/responses", "/v1/chat/completions", "/chat/completions")
# Routes that count the tokens of such a request.
COUNTED = {"/v1/messages": "/v1/messages/count_tokens", **{path: f"{path}/input_tokens" for path in CHATS}}
