"""Settings to target, drafters and policy: the only place where the parts meet."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.ports import Drafter
from paceline.core.settings import Drafting, checked
from paceline.core.vocab import check_shared
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.llm import LLM

PathLike = str | Path


def load(
    target: PathLike | None = None,
    draft: PathLike | None = None,
    drafters: Sequence[str] | str | None = None,
    *,
    n_ctx: int = 0,
    threads: int | None = None,
    gpu_layers: int = 0,
    **settings: Any,
) -> LLM:
    """A model ready to generate.

    target: a GGUF file; the embedded model if None. draft: a smaller GGUF with the same vocabulary; beside
    the embedded target the embedded draft. drafters: names in the order they are asked ("lookup", "model";
    "none" decodes plainly); by default lookup, and model where there is a draft.
    settings: the fields of Drafting (n_draft, width, p_min, ..., the draft's own temperature and top_k).
    Raises UsageError, VocabError, ModelError or MissingExtraError.
    """
    from paceline import zoo
    from paceline.engines.llama import LlamaTarget
    from paceline.machine.threads import choose_threads

    if target is None:
        target = zoo.target_path()
        if draft is None and (drafters is None or "model" in drafters):
            draft = zoo.draft_path()
    if isinstance(drafters, str):
        drafters = [name.strip() for name in drafters.split(",")]
    if drafters is None:
        drafters = ["lookup", "model"] if draft is not None else ["lookup"]
    drafting = checked(Drafting, {"drafters": tuple(drafters), **settings})
    if "model" in drafters and draft is None:
        raise UsageError("the drafter 'model' needs a draft model: give one (-md), or use --draft lookup")
    if "model" not in drafters and draft is not None:
        raise UsageError(f"a draft model is given, but --draft {','.join(drafters)} does not name 'model'")
    n_threads = choose_threads(threads)
    with contextlib.ExitStack() as undo:
        engine = LlamaTarget(Path(target), n_ctx=n_ctx, threads=n_threads, gpu_layers=gpu_layers)
        undo.callback(engine.close)
        if not engine.caps.rewind and drafting.drafters != ("none",):
            raise UsageError(
                f"{target}: a recurrent model's state cannot be rolled back yet, so nothing can be drafted "
                "for it; use --draft none"
            )
        parts: list[Drafter] = []
        small = None
        for name in drafting.drafters:
            if name == "lookup":
                parts.append(LookupDrafter(drafting.shortest_ngram, drafting.ngram_max))
            elif name == "model" and draft is not None:
                from paceline.drafters.model import ModelDrafter

                small = LlamaTarget(
                    Path(draft), n_ctx=engine.caps.n_ctx, threads=n_threads, gpu_layers=gpu_layers
                )
                undo.callback(small.close)
                check_shared(engine.vocab, small.vocab)
                parts.append(
                    ModelDrafter(
                        small, engine.vocab.size, temperature=drafting.temperature, top_k=drafting.top_k
                    )
                )
            else:
                parts.append(NoDrafter())
        drafter = parts[0] if len(parts) == 1 else ComposedDrafter(parts)
        undo.pop_all()
    return LLM(engine, drafter, drafting, small)
