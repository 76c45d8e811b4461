"""Routes that describe the model, in the forms of OpenAI, llama-server and Ollama; and its tokenizer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI

import paceline
from paceline.server import schemas
from paceline.server.apis.answer import visible_text
from paceline.server.convert import chat_prompt, prompt_tokens
from paceline.server.schemas import Json
from paceline.server.service import ServingEngine
from paceline.speculative.errors import UsageError
from paceline.text.chat_template import chat_sampling

OLLAMA_VERSION = "0.12.0"  # whose API this server has; clients refuse older ones


def add_routes(
    app: FastAPI, service: ServingEngine, listed: Sequence[str], require_name: Callable[[str], None]
) -> None:
    llm, created = service.llm, int(time.time())
    target, text = llm.target, llm.target.text

    @app.get("/models", include_in_schema=False)
    @app.get("/v1/models", summary="The model that is served")
    async def models() -> Json:
        return {"object": "list", "data": [model_json(name) for name in listed], "models": ollama_models()}

    @app.get("/v1/models/{name:path}", summary="One name of it")
    async def model(name: str) -> Json:
        require_name(name or "?")
        return model_json(name)

    def model_json(name: str) -> Json:
        about = {"description": target.description, "n_vocab": target.vocab.size, "sampling": sampling()}
        about["drafters"] = [] if llm.drafting.plain else llm.drafter.name.split(",")
        base = {"id": name, "object": "model", "created": created, "owned_by": "paceline"}
        return base | {"root": target.path.name, "max_model_len": target.caps.n_ctx, "meta": about}

    @app.post("/apply-template", summary="A chat as the model's prompt")
    def apply_template(body: schemas.ChatRequest) -> Json:
        return {"prompt": visible_text(llm, chat_prompt(llm, body, []))}

    @app.get("/props", summary="llama-server's properties")
    async def props() -> Json:
        bos, eos = text.bos_and_eos()
        return {
            "default_generation_settings": {"n_ctx": target.caps.n_ctx, "params": sampling()},
            "total_slots": service.sessions,
            "model_alias": listed[0],
            "model_path": target.path.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": text.template(),
            "bos_token": bos,
            "eos_token": eos,
            "build_info": f"paceline {paceline.__version__}",
            "is_sleeping": False,
        }

    @app.get("/slots", summary="llama-server's slots")
    async def slots() -> list[Json]:
        n, about = service.running, {"n_ctx": target.caps.n_ctx, "speculative": not llm.drafting.plain}
        return [{"id": at, "is_processing": at < n, **about} for at in range(service.sessions)]

    def sampling() -> dict[str, float]:
        return chat_sampling(target, service.limits.sampling)

    def ollama_models() -> list[Json]:
        about = {"modified_at": rfc_time(created), "size": target.weight_bytes or 0, "details": details()}
        digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in listed}
        return [{"name": name, "model": name, "digest": it, **about} for name, it in digests.items()]

    def details() -> Json:
        family = target.description.split()[0] if target.description else ""
        form = "gguf" if target.path.suffix == ".gguf" else "safetensors"
        about = {"parent_model": "", "format": form, "family": family, "families": [family]}
        return about | {"parameter_size": "", "quantization_level": ""}

    @app.get("/api/version", summary="The version of Ollama's API")
    async def version() -> Json:
        return {"version": OLLAMA_VERSION}

    @app.get("/api/tags", summary="Ollama's list of models")
    async def tags() -> Json:
        return {"models": ollama_models()}

    @app.get("/api/ps", summary="Ollama's list of running models")
    async def running() -> Json:
        about = {
            "expires_at": rfc_time(time.time() + 86400),
            "size_vram": 0,
            "context_length": target.caps.n_ctx,
        }
        return {"models": [{**model, **about} for model in ollama_models()]}

    @app.post("/api/show", summary="Ollama's description of a model")
    async def show(body: schemas.ShowRequest) -> Json:
        require_name(body.model or body.name)
        family = details()["family"] or "model"
        tools = ["tools"] if llm.has_chat_template and llm.tool_support.native else []
        names = {"general.architecture": family, "general.basename": listed[0]}
        return {
            "capabilities": ["completion", *tools],
            "details": details(),
            "model_info": names | {f"{family}.context_length": target.caps.n_ctx},
            "template": text.template(),
            "parameters": "\n".join(f"{name} {value}" for name, value in sampling().items()),
            "modelfile": f"FROM {target.path.name}",
            "modified_at": rfc_time(created),
            "license": "",
        }

    @app.post("/tokenize", summary="Text to tokens")
    def tokenize(body: schemas.TokenizeRequest) -> Json:
        if body.content == "":
            return {"tokens": []}
        if isinstance(body.content, str):
            tokens = text.encode(body.content, special=body.parse_special, add_bos=body.add_special)
        else:
            tokens = prompt_tokens(llm, body.content)
            require_tokens("content", tokens)
        if not body.with_pieces:
            return {"tokens": tokens}
        return {"tokens": [{"id": token, "piece": piece_json(token)} for token in tokens]}

    def piece_json(token: int) -> str | list[int]:
        piece = text.piece(token) or target.vocab.text(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return list(piece)

    def require_tokens(name: str, tokens: Sequence[int]) -> None:
        if wrong := [token for token in tokens if not 0 <= token < target.vocab.size]:
            raise UsageError(f"{name}: {wrong[0]}: the model's tokens are 0 to {target.vocab.size - 1}")

    @app.post("/detokenize", summary="Tokens to text")
    def detokenize(body: schemas.DetokenizeRequest) -> Json:
        require_tokens("tokens", body.tokens)
        return {"content": b"".join(map(text.piece, body.tokens)).decode(errors="replace")}


def rfc_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
