"""Programs that talk to a server, each with the environment and the arguments that point it at ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# {url}: the server's, without /v1. {model}: the model's name there. {key}: the API key.
V1 = "{url}/v1"


@dataclass(frozen=True)
class Tool:
    """program: its name on PATH. install: the command that installs it.
    environment, arguments: texts with {url}, {model} and {key}."""

    program: str
    install: str
    environment: Mapping[str, str]
    arguments: Sequence[str] = ()


_CODEX = '{name = "Paceline", base_url = "{url}/v1", wire_api = "responses", env_key = "OPENAI_API_KEY"}'
_OPENCODE = {
    "model": "paceline/{model}",
    "provider": {
        "paceline": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Paceline",
            "options": {"baseURL": V1, "apiKey": "{key}"},
            "models": {"{model}": {"name": "{model}"}},
        }
    },
}
# fmt: off
TOOLS = {tool.program: tool for tool in (
    Tool("aider", "pip install aider-chat", {"OPENAI_API_BASE": V1, "OPENAI_API_KEY": "{key}"},
         ("--model", "openai/{model}", "--no-show-model-warnings")),
    Tool("claude", "npm install -g @anthropic-ai/claude-code",
         {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "{key}", "ANTHROPIC_MODEL": "{model}",
          "ANTHROPIC_SMALL_FAST_MODEL": "{model}", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}),
    Tool("codex", "npm install -g @openai/codex", {"OPENAI_API_KEY": "{key}"},
         ("-c", "model_provider=paceline", "-c", "model_providers.paceline=" + _CODEX, "-m", "{model}")),
    Tool("goose", "see https://block.github.io/goose",
         {"GOOSE_PROVIDER": "openai", "OPENAI_HOST": "{url}", "OPENAI_API_KEY": "{key}",
          "GOOSE_MODEL": "{model}"}, ("session",)),
    Tool("open-webui", "pip install open-webui",
         {"OPENAI_API_BASE_URL": V1, "OPENAI_API_KEY": "{key}", "ENABLE_OLLAMA_API": "false"}, ("serve",)),
    Tool("opencode", "npm install -g opencode-ai", {"OPENCODE_CONFIG_CONTENT": json.dumps(_OPENCODE)}),
    Tool("qwen", "npm install -g @qwen-code/qwen-code",
         {"OPENAI_BASE_URL": V1, "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}"}),
)}
# fmt: on


def configured(tool: Tool, url: str, model: str, key: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a tool for a server."""
    places = {"url": url, "model": model, "key": key or "none"}

    def fill(text: str) -> str:
        for name, value in places.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    command = [tool.program, *map(fill, tool.arguments)]
    return command, {name: fill(value) for name, value in tool.environment.items()}
