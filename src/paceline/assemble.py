"""Settings to target, drafters and policy: the only place where the parts meet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import zoo
from paceline.core.errors import UsageError
from paceline.core.ports import Drafter
from paceline.core.settings import Drafting, checked
from paceline.core.vocab import check_shared
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.llm import LLM
from paceline.machine.threads import choose_threads

if TYPE_CHECKING:
    from paceline.engines.llama import LlamaTarget

PathLike = str | Path


@dataclass(frozen=True)
class Parts:
    """What a drafter can be made from."""

    drafting: Drafting
    target: LlamaTarget
    draft: LlamaTarget | None


def make_lookup(parts: Parts) -> Drafter:
    return LookupDrafter(parts.drafting.ngram_min, parts.drafting.ngram_max)


def make_model(parts: Parts) -> Drafter:
    assert parts.draft is not None  # load() asks for one
    check_shared(parts.target.vocab, parts.draft.vocab)
    size, drafting = parts.target.vocab.size, parts.drafting
    return ModelDrafter(
        parts.draft,
        size,
        temperature=drafting.temperature,
        top_k=drafting.top_k,
        independent=drafting.independent,
    )


def make_none(_: Parts) -> Drafter:
    return NoDrafter()


# Name = file = command-line word = settings value.
MAKERS: dict[str, Callable[[Parts], Drafter]] = {
    "lookup": make_lookup,
    "model": make_model,
    "none": make_none,
}


def load(
    target: PathLike | None = None,
    draft: PathLike | None = None,
    drafters: Sequence[str] | str | None = None,
    *,
    n_ctx: int = 0,
    threads: int | None = None,
    gpu_layers: int = 0,
    flash_attention: bool | None = None,
    cache_type: str = "f16",
    **settings: Any,
) -> LLM:
    """A model ready to generate.

    target: a GGUF file; the embedded model if None. draft: a smaller GGUF with the same vocabulary; beside
    the embedded target the embedded draft. drafters: names in the order they are asked ("lookup", "model";
    "none" decodes plainly); by default lookup, and model where there is a draft.
    n_ctx: 0 is what the model was trained for, at most 4,096. threads: None is one a physical core.
    flash_attention: None leaves it to llama.cpp. cache_type: f32, f16, bf16 or q8_0.
    settings: the fields of Drafting (n_draft, width, p_min, ..., the draft's own temperature and top_k).
    Raises UsageError, VocabError, ModelError or MissingExtraError.
    """
    from paceline.engines.llama import LlamaTarget

    if isinstance(drafters, str):
        drafters = [name.strip() for name in drafters.split(",")]
    target, draft, names = choose(target, draft, drafters)
    drafting = checked(Drafting, {"drafters": names, **settings})
    if "model" in names and draft is None:
        raise UsageError("the drafter 'model' needs a draft model: give one (-md), or use --draft lookup")
    if "model" not in names and draft is not None:
        raise UsageError(f"a draft model is given, but --draft {','.join(names)} does not name 'model'")
    if n_ctx < 0:
        raise UsageError(f"a context of {n_ctx} tokens: must be at least 1, or 0 for the model's own")
    engine_settings: dict[str, Any] = {
        "threads": choose_threads(threads),
        "gpu_layers": gpu_layers,
        "flash_attention": flash_attention,
        "cache_type": cache_type,
    }
    with contextlib.ExitStack() as undo:
        engine = LlamaTarget(Path(target), n_ctx=n_ctx, **engine_settings)
        undo.callback(engine.close)
        if not engine.caps.rewind and names != ("none",):
            raise UsageError(
                f"{target}: a recurrent model's state cannot be rolled back yet, so nothing can be drafted "
                "for it; use --draft none"
            )
        small = None
        if draft is not None:
            small = LlamaTarget(Path(draft), n_ctx=engine.caps.n_ctx, **engine_settings)
            undo.callback(small.close)
        drafted_by = [MAKERS[name](Parts(drafting, engine, small)) for name in names]
        undo.pop_all()
    drafter = drafted_by[0] if len(drafted_by) == 1 else ComposedDrafter(drafted_by)
    return LLM(engine, drafter, drafting, small)


def choose(
    target: PathLike | None, draft: PathLike | None, drafters: Sequence[str] | None
) -> tuple[PathLike, PathLike | None, tuple[str, ...]]:
    """Fill in what was left open: the embedded models, and every drafter there is a model for."""
    if target is None:
        target = zoo.target_path()
        if draft is None and (drafters is None or "model" in drafters):
            draft = zoo.draft_path()
    if drafters is None:
        drafters = ["lookup", "model"] if draft is not None else ["lookup"]
    return target, draft, tuple(drafters)
