"""The composition root: makes target, drafters and policy from settings."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.backends.registry import BackendSpec, backend_build, open_engine, resolve_kernels
from paceline.backends.speculative_prefill import compute_part_of_prompts
from paceline.config import ROLES, Drafting, parse_lossy, validate_drafting
from paceline.drafter_factory import (
    Corpora,
    PathLike,
    check_needs,
    draft_source,
    make_drafter,
    make_policy,
    open_confidence,
    open_head,
    open_parallel_draft,
    resolve_view,
)
from paceline.drafter_table import DRAFT, DRAFTERS, users
from paceline.hardware.threads import choose_threads
from paceline.models import zoo
from paceline.models.headers.plain_file import require_gguf_path
from paceline.models.names import is_toy, is_transformers, is_view
from paceline.models.resolve import file_of
from paceline.profiling.pass_costs import costs_of, refresh, save
from paceline.speculative import validation as typed
from paceline.speculative.errors import RememberedError, UsageError
from paceline.speculative.interfaces import Drafter, LearningDrafter
from paceline.speculative.vocabulary import Vocab
from paceline.storage.remembered import AnswerHistory, project_of
from paceline.storage.variants import load_recommendation
from paceline.system.home import to_stderr
from paceline.vocab.shared import check_shared


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
    lossy: str = "",
    role: str = "",
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
    exact_greedy: bool = False,
    sessions: int = 1,
    corpora: Sequence[PathLike] = (),
    remember: bool | PathLike = False,
    **settings: Any,
) -> LLM:
    """Load a model with its drafters.

    Costs of passes are measured when a model is first loaded, in a few seconds, and stored.

    Raises UsageError, VocabError, ModelError or MissingExtraError.

    target: a GGUF file, a folder of a transformers model, or a name as on the command line
    ("ollama:llama3.2:3b", "user/repo:Q4_K_M", "hf:user/repo"); the embedded model if None.
    draft: a smaller model, also of another vocabulary (cross_vocab="auto"), or a part of a transformers
    target ("view:skip=8", see backends/views.py); by default the embedded draft for the embedded target.
    drafters: names in the order they are called ("lookup", "model"); "none" decodes plainly; the default
    "auto" is all available drafters, each used when it pays.
    n_ctx: tokens of context; 0 is the model's, at most 4,096.
    threads: one a physical core if None, within a container's quota.
    flash_attention: if None, llama.cpp chooses; Paceline's kernels always have it.
    cache_type: f32, f16, bf16 or q8_0.
    kernels: "auto" uses Paceline's kernels for GGUF models if they can be compiled (docs/kernels.md), "off"
    llama.cpp only.
    lossy: runs another target, which says other things: "experts=N" uses N experts of a mixture a token,
    "prefill=0.2" computes a fifth of each long prompt, which the draft model chooses.
    role: "quality" refuses `lossy`. "speed" uses what `paceline experts` and `paceline prefill` recommended
    for the models, each within the bound of quality given there.
    device: cpu, cuda, mps or auto, for a transformers model.
    dtype: float32, bfloat16, float16 or auto (as stored), for a transformers model.
    attention: transformers' name of an implementation, or auto.
    exact_greedy: greedy output equals plain output to the last bit, as always with Paceline's kernels.
    Otherwise all passes have n_draft + 1 rows, so that a plain step costs as much, and drafts are chains.
    sessions: most requests decoded at the same time; each has its context.
    corpora: names or folders of corpora, or n-gram caches of llama.cpp, for datastore and ngram.
    remember: store answers for a project (a folder, or True for the current one), for drafters that learn.
    If the disk fails, there is a warning, and nothing is stored.
    settings: the fields of Drafting (n_draft, width, p_min, ..., draft_temp and draft_top_k).
    """
    if isinstance(drafters, str):
        drafters = [name.strip() for name in drafters.split(",")]
    drafters = None if drafters is None else typed.text_list("drafters", drafters)
    n_ctx, gpu_layers = typed.integer("n_ctx", n_ctx), typed.integer("gpu_layers", gpu_layers)
    sessions = typed.integer("sessions", sessions)
    threads = None if threads is None else typed.integer("threads", threads)
    available = Corpora.find(corpora).available  # checks the names before a model is loaded
    drafters_open = drafters is None
    target, draft, names = choose_drafting(target, draft, drafters)
    draft, confidence = open_confidence(draft)
    drafting = one_shape = validate_drafting(Drafting, {"drafters": names, **settings})
    if exact_greedy and drafters_open:  # passes of one shape cost the same: the policy has no choice
        chains = ("lookup", "model")[: 1 + (draft is not None)]
        one_shape = validate_drafting(Drafting, {"drafters": chains, **settings})
    source = "" if draft is None else draft_source(draft)
    check_needs(drafting, [*available, *filter(None, [source])])
    if role not in ROLES:
        raise typed.invalid("role", role, f"one of {', '.join(ROLES[1:])}")
    if role == "quality" and lossy:
        raise UsageError(f"role quality: lossy {lossy} changes what the model says; leave one of them out")
    choices = parse_lossy(lossy)
    selects = source == DRAFT and bool(choices.prefill or role == "speed")  # the draft model, prompt tokens
    drafts = "" if selects else source
    require_drafter_inputs(drafting, available, drafts, bool(remember))
    if draft and not (is_view(draft) or is_toy(draft) or is_transformers(draft) or Path(draft).is_dir()):
        require_gguf_path(Path(draft))
    if n_ctx < 0:
        raise UsageError(f"a context of {n_ctx} tokens: must be at least 1, or 0 for the model's own")
    if {device, dtype, attention} != {"auto"} and not is_transformers(Path(target)):
        raise UsageError(
            f"{target}: device, dtype and attention (--device, ...) are for transformers models; a "
            "GGUF file has its types, and for it there are gpu_layers (-ngl) and flash_attention (-fa)"
        )
    if gpu_layers and not backend_build(Path(target)).offload:
        reason = (
            f"is for GGUF files; {target} is loaded on a device (device, --device)"
            if is_transformers(Path(target))
            else "the engine was built without a GPU, and all layers stay on the processor; for a GPU "
            "llama-cpp-python has to be compiled for it"
        )
        to_stderr(f"gpu_layers (-ngl) {gpu_layers}: {reason}")
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
    if role == "speed" and not lossy:
        choices = parse_lossy(recommended(Path(target), draft if source == DRAFT else None, engine_settings))
    engine_settings["experts"] = choices.experts
    with contextlib.ExitStack() as undo:
        rows = 1 + one_shape.n_draft if exact_greedy else 0
        engine = open_engine(Path(target), n_ctx=n_ctx, exact_rows=rows, **engine_settings)
        undo.callback(engine.close)
        if engine.settings.get("exact_rows"):
            drafting = one_shape
            require_drafter_inputs(drafting, available, source, bool(remember))
            if drafting.budget.width > 1:
                raise UsageError(
                    "exact greedy output without kernels of our own needs drafts that are chains: use width "
                    "1, and not lookahead"
                )
        if engine.caps.rollback == "none" and drafters_open:
            draft, drafting = None, Drafting(drafters=("none",))
            if remember:
                raise UsageError(f"{target}: nothing can be drafted for it: leave out remember (--remember)")
        if engine.caps.rollback == "none" and not drafting.plain:
            raise UsageError(
                f"{target}: the model's state cannot be rolled back, so nothing can be drafted for it; use "
                "the drafter none (drafters, --draft)"
            )
        small = None
        if draft is not None:
            small = open_draft(draft, engine, engine_settings)
            undo.callback(small.close)
        if choices.prefill and (lossy or engine.caps.sparse_prompts):
            selecting = small if draft is not None and source == DRAFT and not is_view(draft) else None
            if selecting is not None:
                check_shared(engine.vocab, selecting.vocab)
            compute_part_of_prompts(engine, selecting, choices.prefill)
        costs = costs_of(engine, small) if drafting.policy == "rate" else None
        found = Corpora.find(corpora, engine.vocab)
        drafter, drafting = make_drafter(drafting, engine, small, found, costs, to_stderr, confidence)
        remembered = learn_past_answers(engine.vocab, drafter, remember) if remember else None
        policy = make_policy(drafting, costs)
        llm = LLM(engine, drafter, drafting, small, remembered, found, policy)
        llm.role = role
        if small is not None and not users(drafting.drafters, source):
            llm.on_close(small.close)  # it only chooses prompt tokens
        undo.pop_all()
    if costs is not None:
        refresh(costs, small)
        llm.on_close(lambda: save(engine, small, costs))
    return llm


def recommended(target: Path, draft: PathLike | None, settings: Mapping[str, Any]) -> str:
    """Return the stored lossy choices for the role speed, and say what they change. draft: a draft model."""
    models = {"model": BackendSpec(target, settings).identity()["model"]}
    found = [load_recommendation("experts", models, to_stderr)]
    if draft is not None and not is_view(draft):
        models = {**models, "draft": BackendSpec(Path(draft), settings).identity()["model"]}
        found.append(load_recommendation("prefill", models, to_stderr))
    chosen = [one for one in found if one is not None and one.lossy]
    for one in chosen:
        to_stderr(f"role speed: {one.lossy} changes what {target} says ({one.effect})")
    return ",".join(one.lossy for one in chosen)


def open_draft(draft: PathLike, target: Backend, settings: Mapping[str, Any]) -> Backend:
    """Open a draft model, or a part of the target (view:...). Close it before the target.

    Raises UsageError, ModelError or MissingExtraError. settings: those of the target's engine."""
    settings = {**settings, "experts": 0}
    if is_view(draft):
        return resolve_view(draft, target, to_stderr)
    if (parallel := open_parallel_draft(draft, target, settings)) is not None:
        return parallel
    if draft_source(draft) != DRAFT:
        return open_head(draft, target)
    return open_engine(Path(draft), n_ctx=target.caps.n_ctx, **settings)


def require_drafter_inputs(drafting: Drafting, corpora: Sequence[str], draft: str, remember: bool) -> None:
    """Raise UsageError for an input that no drafter uses.
    corpora: the kinds of available indexes. draft: the kind of draft (draft_source), or ""."""
    names = ",".join(drafting.drafters)
    if draft and not (fitting := users(drafting.drafters, draft)):
        fitting = [name for name in users(DRAFTERS, draft) if name != "auto"]
        raise UsageError(f"a {draft} is given, but the drafters (--draft) {names} have no {fitting[0]!r}")
    draft_settings = {
        f"draft_temp {drafting.draft_temp:g}": drafting.draft_temp > 0,
        f"cross_vocab {drafting.cross_vocab}": drafting.cross_vocab != "off",
    }
    for what, is_set in draft_settings.items():
        if is_set and not draft:
            raise UsageError(f"{what} is for a draft model: give one (draft, -md), or leave it out")
    if remember and not any(row.learns for row in drafting.rows):
        learners = ", ".join(row.name for row in DRAFTERS.values() if row.learns)
        raise UsageError(f"nothing learns from what is remembered: name one of {learners}")
    if corpora and not drafting.plain and not any(users(drafting.drafters, what) for what in corpora):
        of_use = " or ".join(name for what in corpora for name in users(DRAFTERS, what) if name != "auto")
        raise UsageError(f"a corpus is given, but the drafters (--draft) {names} have no {of_use}")


def learn_past_answers(vocab: Vocab, drafter: Drafter, project: bool | PathLike) -> AnswerHistory | None:
    """Let the drafter learn the project's past answers, and return their store.

    Return None with a warning if the store cannot be used."""
    assert isinstance(drafter, LearningDrafter)  # checked by require_drafter_inputs
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
    target: PathLike | None, draft: PathLike | None, drafters: Sequence[str] | None
) -> tuple[PathLike, PathLike | None, tuple[str, ...]]:
    """Return the files of the models, and the drafters, with the defaults for None. Raises UsageError."""
    target, draft = (None if name is None else file_of(name) for name in (target, draft))
    if target is None:
        target = zoo.target_path()
        if draft is None and (drafters is None or users(drafters, DRAFT)):
            draft = zoo.draft_path()
    return target, draft, tuple(("auto",) if drafters is None else drafters)
