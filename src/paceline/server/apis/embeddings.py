"""Embeddings in the forms of OpenAI, llama-server and Ollama."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from paceline.api import LLM
from paceline.backends.interface import Embeds
from paceline.server.convert import prompt_tokens, prompts_of
from paceline.server.schemas import Body, Json, Name, Prompts, also
from paceline.speculative.errors import UsageError
from paceline.speculative.request import GenerationRequest
from paceline.text.messages import content_text


class EmbeddingsRequest(Body):
    """POST /v1/embeddings, and what others have in its place"""

    model: Name = ""
    input: Annotated[Prompts, also("input", "content", "prompt")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Only the first, at length 1 again.")] = None
    embd_normalize: Literal[2] = 2
    truncate: Annotated[bool | None, Field(description="Cut what the context has no room for.")] = None


@dataclass(frozen=True)
class EmbeddingApi:
    """One form. form: of the model's name, the vectors and the number of tokens. truncates: by default."""

    paths: tuple[str, ...]
    summary: str
    form: Callable[[str, list[Any], int], Any]
    truncates: bool = False


def input_tokens(llm: LLM, body: EmbeddingsRequest, *, truncates: bool) -> list[list[int]]:
    """Return the tokens of each text. Raises UsageError, and ContextError for long ones."""
    texts = list[list[int]]()
    for given in prompts_of(body.input):
        if isinstance(given, dict) and isinstance(given.get("content"), list):
            given = content_text("input: its content", given["content"])
        tokens = prompt_tokens(llm, given)
        if truncates if body.truncate is None else body.truncate:
            tokens = tokens[: llm.target.caps.n_ctx]
        GenerationRequest(prompt=tokens).require_fits(llm.target)
        texts.append(tokens)
    return texts


def embed(
    target: Embeds, texts: Sequence[Sequence[int]], body: EmbeddingsRequest
) -> Generator[None, None, list[Any]]:
    """Return the vectors of texts, each of length 1. Yields between two texts."""
    made = list[Any]()
    for tokens in texts:
        vector = target.embed(tokens)
        if body.dimensions is not None and body.dimensions > len(vector):
            raise UsageError(f"dimensions {body.dimensions}: this model has {len(vector)}: ask for no more")
        vector = vector[: body.dimensions]
        vector /= max(float(np.linalg.norm(vector)), 1e-12)
        as_text = body.encoding_format == "base64"
        made.append(base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_text else vector.tolist())
        yield
    return made


def openai(model: str, vectors: list[Any], n_tokens: int) -> Json:
    data = [{"object": "embedding", "index": at, "embedding": one} for at, one in enumerate(vectors)]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


# fmt: off
EMBEDDINGS = (
    EmbeddingApi(("/v1/embeddings",), "Embed texts", openai),
    EmbeddingApi(("/embedding", "/embeddings"), "llama-server's embeddings",
                 lambda _model, made, _n: [{"index": at, "embedding": [one]} for at, one in enumerate(made)]),
    EmbeddingApi(("/api/embed",), "Ollama's embeddings",
                 lambda model, made, n: {"model": model, "embeddings": made, "prompt_eval_count": n}, True),
    EmbeddingApi(("/api/embeddings",), "Ollama's embedding of one text",
                 lambda _model, made, _n: {"embedding": made[0]}, True),
)
# fmt: on
