"""The composition root: options to a loaded model with its drafters, in three steps.

`plan.resolve` finds the files and checks what fits, and opens no model. `open_models` opens them, and makes
no drafter. `assemble` makes drafters and policy; it may run passes to measure them, before anything else uses
the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.backends.registry import open_engine
from paceline.backends.speculative_prefill import compute_part_of_prompts
from paceline.drafter_factory import make_drafter, make_policy
from paceline.drafter_table import DRAFT, users
from paceline.drafts import loaded_traits, open_draft, require_fit, traits_of
from paceline.fits import LOSSY_PREFILL, MTP, NO_MODEL, source_of, why_not
from paceline.plan import LoadPlan, check_inputs, resolve
from paceline.profiling.learned import restore
from paceline.profiling.pass_costs import costs_of, refresh, save
from paceline.profiling.slow_passes import watch_passes
from paceline.settings import AUTO, PLAIN, Drafting, LoadOptions, PathLike
from paceline.speculative.errors import ModelError, RememberedError, UsageError
from paceline.speculative.interfaces import Drafter, LearningDrafter
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.vocabulary import Vocab
from paceline.storage.corpora import Corpora
from paceline.storage.remembered import AnswerHistory, project_of
from paceline.system.home import to_stderr
from paceline.vocab.translation import check_shared

T = TypeVar("T")


def load(
    target: PathLike | None = None,
    draft: PathLike | None = None,
    drafters: Sequence[str] | str | None = None,
    *,
    corpora: Sequence[PathLike] = (),
    remember: bool | PathLike = False,
    **settings: Any,
) -> LLM:
    """Load a model with its drafters.

    Costs of passes are measured when a model is first loaded, in a few seconds, and stored.
    Raises UsageError, VocabError, ModelError or MissingExtraError.

    target: a GGUF file, a folder of a transformers model, or a name as on the command line
    ("ollama:llama3.2:3b", "user/repo:Q4_K_M", "hf:user/repo"); the embedded model if None.
    draft: a smaller model, also of another vocabulary (cross_vocab="auto"), a part of the target
    ("view:skip=8", see backends/views.py) or a draft head; fits.py says which fit a target. By default the
    embedded draft for the embedded target.
    drafters: names in the order they are called ("lookup", "model"); "none" decodes plainly; the default
    "auto" is all available drafters, each used when it pays.
    corpora: names or folders of corpora, or n-gram caches of llama.cpp, for datastore and ngram.
    remember: store answers for a project (a folder, or True for the current one), for drafters that learn.
    If the disk fails, there is a warning, and nothing is stored.
    settings: fields of EngineOptions (n_ctx, threads, gpu_layers, ..., sessions), of Quality (lossy, role)
    and of Drafting (n_draft, width, p_min, ...); see settings.py."""
    options = LoadOptions.of(target, draft, drafters, corpora=corpora, remember=remember, **settings)
    return load_options(options)


def load_options(options: LoadOptions) -> LLM:
    """Load a model with its drafters; see `load`. If this fails, nothing stays open."""
    return load_plan(resolve(options))


def load_plan(plan: LoadPlan) -> LLM:
    with ExitStack() as undo:
        llm = assemble(plan, *open_models(plan, undo))
        undo.pop_all()
    return llm


def or_without_mtp(plan: LoadPlan, load: Callable[[LoadPlan], T]) -> tuple[T, LoadPlan]:
    """Return what `load` makes of a plan, and that plan. If `auto` found MTP layers in the target's file, and
    they cannot be computed, it is one without them, and a line says why."""
    by_itself = plan.kind == MTP and plan.options.draft is None
    try:
        return load(plan), plan
    except ModelError as error:
        if not by_itself or AUTO not in plan.options.drafting.drafters:
            raise
        reason = str(error)
    plan = replace(plan, draft=None, kind="", settings={**plan.settings, "mtp": False})
    loaded = load(plan)
    to_stderr(f"multi-token prediction (MTP) is not used: {reason}")
    return loaded, plan


def open_models(plan: LoadPlan, undo: ExitStack) -> tuple[Backend, Backend | None, Drafting]:
    """Open target and draft; return them with the drafting that the target allows. undo: closes them."""
    return or_without_mtp(plan, partial(_open_models, undo=undo))[0]


def _open_models(plan: LoadPlan, undo: ExitStack) -> tuple[Backend, Backend | None, Drafting]:
    engine, draft = plan.options.engine, None
    rows = 1 + plan.chains.n_draft if engine.exact_greedy else 0
    with ExitStack() as opened:
        target = open_engine(plan.target, n_ctx=engine.n_ctx, exact_rows=rows, **plan.settings)
        opened.callback(target.close)
        drafting = allowed_drafting(plan, target)
        if plan.draft is not None and (not drafting.plain or plan.selects_prompt_tokens):
            draft = open_draft(plan.draft, target, plan.draft_settings)
            opened.callback(draft.close)
        if plan.quality.prefill:
            select_prompt_tokens(plan, target, draft)
        undo.push(opened.pop_all())
    return target, draft, drafting


def allowed_drafting(plan: LoadPlan, target: Backend) -> Drafting:
    """Return the drafting that a loaded target allows: PLAIN for `auto` if nothing can be drafted for it.
    Raises UsageError for named drafters that do not work."""
    drafting, is_auto = plan.options.drafting, AUTO in plan.options.drafting.drafters
    if target.settings.get("exact_rows"):
        drafting = plan.chains
        check_inputs(plan.options, plan.kind, drafting)
        if drafting.budget.width > 1:
            raise UsageError(
                "exact greedy output without kernels of our own needs drafts that are chains: use width "
                "1, and not lookahead"
            )
    reason = why_not(NO_MODEL, loaded_traits(target))
    if not reason or drafting.plain:
        return drafting
    if is_auto and not plan.options.remember:
        if plan.draft is not None:
            to_stderr(f"{plan.draft} is not used: {reason}")
        return PLAIN
    remedy = "leave out remember (--remember)" if is_auto else "use --draft none, without -md (draft)"
    raise UsageError(f"{plan.target}: {reason}: {remedy}")


def select_prompt_tokens(plan: LoadPlan, target: Backend, draft: Backend | None) -> None:
    """Let the draft model choose the prompt tokens that are computed. Raises UsageError where it cannot."""
    if not target.caps.sparse_prompts and not plan.options.quality.lossy:
        return  # recommended for other settings
    require_fit(f"lossy prefill: {plan.target}", LOSSY_PREFILL, traits_of(target))
    selecting = draft if plan.kind == DRAFT else None
    if selecting is not None:
        check_shared(target.vocab, selecting.vocab)
    compute_part_of_prompts(target, selecting, plan.quality.prefill)


def assemble(plan: LoadPlan, target: Backend, draft: Backend | None, drafting: Drafting) -> LLM:
    """Make drafters and policy, and return the model with all of them."""
    options = plan.options
    costs = costs_of(target, draft) if drafting.policy == "goodput" and not drafting.plain else None
    corpora = Corpora.find(options.corpora, target.vocab)
    drafter, drafting = make_drafter(drafting, target, draft, corpora, costs, to_stderr, plan.confidence)
    history = learn_past_answers(target.vocab, drafter, options.remember) if options.remember else None
    llm = LLM(target, drafter, drafting, draft, history, corpora, make_policy(drafting, costs))
    llm.role = options.quality.role
    if draft is not None and not users(drafting.drafters, source_of(plan.kind)):
        llm.on_close(draft.close)  # it only chooses prompt tokens
    if costs is not None:
        refresh(costs, draft)
        watch_passes(target, costs, to_stderr)
        llm.on_close(lambda: save(target, draft, costs))
    if isinstance(policy := llm.policy, GoodputPolicy):
        llm.on_close(restore(policy, target, draft, to_stderr))
    return llm


def learn_past_answers(vocab: Vocab, drafter: Drafter, project: bool | PathLike) -> AnswerHistory | None:
    """Let the drafter learn the project's past answers, and return their store.
    Return None with a warning if the store cannot be used."""
    assert isinstance(drafter, LearningDrafter)  # see plan.check_inputs
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
