"""Settings to target, drafters and policy: the only place where the parts meet."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.backends.registry import backend_build, open_engine, resolve_kernels
from paceline.config import Drafting, validate_drafting
from paceline.drafter_factory import Corpora, PathLike, check_needs, make_drafter, make_policy, resolve_view
from paceline.drafter_table import DRAFT, DRAFTERS, users
from paceline.hardware.threads import choose_threads
from paceline.models import zoo
from paceline.models.names import is_transformers, is_view
from paceline.models.resolve import file_of
from paceline.profiling.flash_attention import choose_flash_attention
from paceline.profiling.pass_costs import costs_of, refresh, save, shared_machine, to_stderr
from paceline.speculative import validation as typed
from paceline.speculative.errors import RememberedError, UsageError
from paceline.speculative.interfaces import Drafter, LearningDrafter
from paceline.speculative.vocabulary import Vocab
from paceline.storage.remembered import AnswerHistory, project_of


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
    kernels: str = "auto",
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
    exact_greedy: bool = False,
    sessions: int = 1,
    corpora: Sequence[PathLike] = (),
    remember: bool | PathLike = False,
    **settings: Any,
) -> LLM:
    """A model ready to generate.

    target: a GGUF file, the folder of a transformers model, or a name as on the command line
    ("ollama:llama3.2:3b", "user/repo:Q4_K_M", "hf:user/repo"); the embedded model if None. draft: a smaller
    one with the same vocabulary, or with another one and cross_vocab="auto", or a part of a transformers
    target ("view:skip=8", see backends/views.py); beside the embedded target the embedded draft. drafters:
    names in the order they are called ("lookup", "model"; "none" decodes plainly); by default "auto", all
    there is something for, each used where it pays by what passes cost on this machine. What they cost is
    measured when a model is loaded for the first time, in a few seconds, and kept.
    n_ctx: 0 is what the model was trained for, at most 4,096. threads: None is one a physical core, within a
    container's quota. flash_attention: None leaves it to llama.cpp, but on a processor, where it is tried
    this once and a draft model does without; with kernels of our own it is on. cache_type: f32, f16, bf16 or
    q8_0. kernels: "auto" computes GGUF models with kernels of our own, compiled once where they can be
    (docs/kernels.md); "off" leaves all to llama.cpp.
    device, dtype, attention: of transformers models: cpu, cuda, mps or auto, a GPU where there is one;
    float32, bfloat16, float16 or auto, as the weights are stored; transformers' name of an implementation,
    or auto.
    exact_greedy: greedy output is plain output to the last bit. With kernels of our own it is anyhow, and
    nothing changes; else plain and drafted passes have one shape, n_draft + 1 rows, so that plain decoding
    costs what a drafted pass does, and drafts are chains.
    corpora: names or folders of what `paceline corpus build` made, or files of n-gram caches in llama.cpp's
    format, for the drafters datastore and ngram.
    remember: keep what is generated on disk for this project (a folder; True: the one we are in), and let
    the drafters that learn draft from what was kept before; where the disk refuses, stderr is told and
    nothing is kept.
    sessions: requests that may be decoded at the same time; each has a context of its own.
    settings: the fields of Drafting (n_draft, width, p_min, ..., the draft's own temperature and top_k).
    Raises UsageError, VocabError, ModelError or MissingExtraError.
    """
    if isinstance(drafters, str):
        drafters = [name.strip() for name in drafters.split(",")]
    drafters = None if drafters is None else typed.text_list("drafters", drafters)
    n_ctx, gpu_layers = typed.integer("n_ctx", n_ctx), typed.integer("gpu_layers", gpu_layers)
    sessions = typed.integer("sessions", sessions)
    threads = None if threads is None else typed.integer("threads", threads)
    available = Corpora.find(corpora).available  # what is wrong with a name is said before a model is loaded
    left_open = drafters is None
    target, draft, names = choose_drafting(target, draft, drafters)
    drafting = one_shape = validate_drafting(Drafting, {"drafters": names, **settings})
    if exact_greedy and left_open:  # passes of one shape all cost alike: there is no rate to choose by
        chains = ("lookup", "model")[: 1 + (draft is not None)]
        one_shape = validate_drafting(Drafting, {"drafters": chains, **settings})
    check_needs(drafting, [*available, *([] if draft is None else [DRAFT])])
    require_drafter_inputs(drafting, available, draft is not None, bool(remember))
    if n_ctx < 0:
        raise UsageError(f"a context of {n_ctx} tokens: must be at least 1, or 0 for the model's own")
    if {device, dtype, attention} != {"auto"} and not is_transformers(Path(target)):
        raise UsageError(
            f"{target}: device, dtype and attention (--device, ...) are for transformers models; a "
            "GGUF file has its types, and for it there are gpu_layers (-ngl) and flash_attention (-fa)"
        )
    if gpu_layers and not backend_build(Path(target)).offload:
        to_stderr(
            f"gpu_layers (-ngl) {gpu_layers}: the engine was built without a GPU, and all layers stay on the "
            "processor; for a GPU llama-cpp-python has to be compiled for it"
        )
        gpu_layers = 0
    engine_settings: dict[str, Any] = {
        "threads": choose_threads(threads),
        "gpu_layers": gpu_layers,
        "flash_attention": flash_attention,
        "cache_type": cache_type,
        "kernels": resolve_kernels(Path(target), kernels),
        "device": device,
        "dtype": dtype,
        "attention": attention,
        "sessions": sessions,
    }
    with contextlib.ExitStack() as undo:
        rows = 1 + one_shape.n_draft if exact_greedy else 0
        engine = open_engine(Path(target), n_ctx=n_ctx, exact_rows=rows, **engine_settings)
        undo.callback(engine.close)
        if engine.settings.get("exact_rows"):
            drafting = one_shape
            require_drafter_inputs(drafting, available, draft is not None, bool(remember))
            if drafting.budget.width > 1:
                raise UsageError(
                    "exact greedy output without kernels of our own needs drafts that are chains: use width "
                    "1, and not lookahead"
                )
        choose_flash_attention(engine)
        if engine.caps.rollback == "none" and left_open:
            draft, drafting = None, Drafting(drafters=("none",))
            if remember:
                raise UsageError(f"{target}: nothing can be drafted for it: leave out remember (--remember)")
        if engine.caps.rollback == "none" and not drafting.plain:
            raise UsageError(
                f"{target}: a recurrent model's state cannot be rolled back yet, so nothing can be drafted "
                "for it; use the drafter none (drafters, --draft)"
            )
        small = None
        if draft is not None:
            small = open_draft(draft, engine, engine_settings)
            undo.callback(small.close)
        costs = costs_of(engine, small) if drafting.policy == "rate" else None
        found = Corpora.find(corpora, engine.vocab)
        drafter, drafting = make_drafter(drafting, engine, small, found, costs, to_stderr)
        remembered = load_cached_costs(engine.vocab, drafter, remember) if remember else None
        policy = make_policy(drafting, costs)
        llm = LLM(engine, drafter, drafting, small, remembered, found, policy)
        undo.pop_all()
    if costs is not None:
        refresh(costs, small)
        llm.on_close(lambda: save(engine, small, costs))
    return llm


def open_draft(draft: PathLike, target: Backend, settings: Mapping[str, Any]) -> Backend:
    """A draft model, or a part of the target (view:...). settings: of the target's engine. To be closed
    before `target`. Raises UsageError, ModelError or MissingExtraError."""
    if is_view(draft):
        return resolve_view(draft, target, to_stderr)
    return open_engine(Path(draft), n_ctx=target.caps.n_ctx, **shared_machine(settings, draft))


def require_drafter_inputs(drafting: Drafting, corpora: Sequence[str], draft: bool, remember: bool) -> None:
    """Raises UsageError for what is given and no drafter uses. corpora: what drafters can use of them."""
    names = ",".join(drafting.drafters)
    if draft and not users(drafting.drafters, DRAFT):
        raise UsageError(f"a draft model is given, but the drafters (--draft) {names} have no 'model'")
    tuned = {
        f"a draft temperature of {drafting.temperature:g}": drafting.temperature > 0,
        f"cross_vocab {drafting.cross_vocab}": drafting.cross_vocab != "off",
    }
    for what, given in tuned.items():
        if given and not draft:
            raise UsageError(f"{what} is for a draft model: give one (draft, -md), or leave it out")
    if remember and not any(row.learns for row in drafting.rows):
        learners = ", ".join(row.name for row in DRAFTERS.values() if row.learns)
        raise UsageError(f"nothing learns from what is remembered: name one of {learners}")
    if corpora and not drafting.plain and not any(users(drafting.drafters, what) for what in corpora):
        of_use = " or ".join(name for what in corpora for name in users(DRAFTERS, what) if name != "auto")
        raise UsageError(f"a corpus is given, but the drafters (--draft) {names} have no {of_use}")


def load_cached_costs(vocab: Vocab, drafter: Drafter, project: bool | PathLike) -> AnswerHistory | None:
    """The project's past outputs, which `drafter` has learned. Where their file cannot be used stderr is told
    why, and it is None: an answer is worth more than its memory."""
    assert isinstance(drafter, LearningDrafter)  # load() has checked it
    folder = project_of(Path.cwd()) if isinstance(project, bool) else Path(project)
    try:
        remembered = AnswerHistory.open(vocab, folder, warn=to_stderr)
        outputs = remembered.outputs()
    except RememberedError as error:
        to_stderr(f"nothing is remembered: {error}")
        return None
    for tokens in outputs:
        drafter.learn(tokens)
    return remembered


def choose_drafting(
    target: PathLike | None,
    draft: PathLike | None,
    drafters: Sequence[str] | None,
) -> tuple[PathLike, PathLike | None, tuple[str, ...]]:
    """Fill in what was left open: the embedded models, and the drafters. Names become files."""
    target, draft = (None if one is None else file_of(one) for one in (target, draft))
    if target is None:
        target = zoo.target_path()
        if draft is None and (drafters is None or users(drafters, DRAFT)):
            draft = zoo.draft_path()
    return target, draft, tuple(("auto",) if drafters is None else drafters)
