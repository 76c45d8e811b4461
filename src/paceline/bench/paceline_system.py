"""Paceline with some drafter, as a System, and the models that all its methods share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import psutil

from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.bench.method import Method
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.drafter_factory import make_drafter, make_policy
from paceline.drafters.compose import learners
from paceline.drafts import kind_of, open_confidence, open_draft
from paceline.loading import load_plan, or_without_mtp
from paceline.plan import LoadPlan, resolve
from paceline.profiling.pass_costs import costs_of, refresh, save
from paceline.settings import Drafting, LoadOptions
from paceline.speculative.interfaces import LearningDrafter, RequiredOutputs
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.request import MAX_FUSED_PREFILL, GenerationRequest
from paceline.speculative.stats import TIME_PARTS, Stats
from paceline.storage.corpora import Corpora
from paceline.system.home import to_stderr

SECONDS = {part: f"{part}_seconds" for part in TIME_PARTS}  # the fields of Stats


class LoadedModels(AbstractContextManager["LoadedModels"]):
    """The owner of a bench's target and draft model, each loaded once.
    given: of the target, with the longest draft of any method. A draft is loaded at its first use, to
    attribute memory: `memory` is resident bytes without it, `draft_memory` what loading the last one added.
    keep_prompts: see BenchPlan."""

    def __init__(self, given: LoadOptions, draft: Path | None = None, *, keep_prompts: bool = False) -> None:
        draft, self._confidence = open_confidence(draft)
        self.keep_prompts = keep_prompts
        drafting = Drafting(drafters=("none",), n_draft=given.drafting.n_draft)
        alone = replace(given, drafting=drafting, corpora=())

        def load_target(plan: LoadPlan) -> LLM:
            if not plan.selects_prompt_tokens:  # else it does so for all methods
                plan = replace(plan, draft=None, kind="")
            return load_plan(replace(plan, options=alone))

        self.plain, self._plan = or_without_mtp(resolve(replace(given, draft=draft)), load_target)
        self._draft_path = self._plan.draft
        self._corpora = Corpora.find(given.corpora, self.plain.target.vocab)
        self._drafts: dict[Path, Backend] = {}
        if self._draft_path is not None and self.plain.draft is not None:
            self._drafts[self._draft_path] = self.plain.draft
        self._costs: dict[Path | None, DecodingCosts] = {}  # without a draft, and with each
        self.memory = self.draft_memory = 0

    def llm(self, method: Method) -> LLM:
        """Return the target with the drafters of a method. Raises as `load` does."""
        drafting, target = method.drafting, self.plain.target
        path = (method.draft or self._draft_path) if method.uses_draft else None
        draft = self._load_draft(path) if path is not None else None
        costs = self.pass_costs(path) if drafting.policy == "goodput" else None
        confidence = self._confidence if path is not None and path == self._draft_path else None
        drafter, drafting = make_drafter(drafting, target, draft, self._corpora, costs, to_stderr, confidence)
        policy = make_policy(drafting, costs)
        return LLM(target, drafter, drafting, draft, corpora=self._corpora, policy=policy)

    def pass_costs(self, path: Path | None = None) -> DecodingCosts:
        """Return the pass costs with a draft. All methods update them and share the target's."""
        if path not in self._costs:
            draft = None if path is None else self._load_draft(path)
            costs = costs_of(self.plain.target, draft)
            for other in self._costs.values():
                costs.target = other.target
            refresh(costs, draft)
            self._costs[path] = costs
        return self._costs[path]

    def _load_draft(self, path: Path) -> Backend:
        if path not in self._drafts:
            before = resident()
            plan = replace(self._plan, draft=path, kind=kind_of(path))
            self._drafts[path] = open_draft(path, self.plain.target, plan.draft_settings)
            self.draft_memory = max(0, resident() - before)
        return self._drafts[path]

    def __exit__(self, *_: object) -> None:
        for path, costs in self._costs.items():
            save(self.plain.target, None if path is None else self._drafts[path], costs)
        for draft in self._drafts.values():
            draft.close()
        self.plain.close()


def resident() -> int:
    """Return the resident bytes of this process, mapped parts of model files included."""
    return int(psutil.Process().memory_info().rss)


class PacelineSystem(System):
    """Paceline's engine. It detokenizes during decoding, as for a user, so that the cost counts."""

    ours = True

    def __init__(self, method: Method, models: LoadedModels) -> None:
        self.name = method.name
        self._models = models
        self.llm = models.llm(method)
        self.sample: Sequence[tuple[str, str]] = ()  # parts of the last answer

    def answer(self, request: BenchRequest) -> BenchAnswer:
        llm = self.llm
        if not self._models.keep_prompts:
            llm.target.forget()
            if llm.draft is not None:
                llm.draft.forget()
        sampling = llm.sampling(**vars(request.sampling))
        start = perf_counter()
        self._prefill_draft(request)
        first = last = 0.0  # arrival of the first and the last tokens
        # The start of decoding, and the tokens and statistics until then.
        decoding: tuple[float, int, Stats] | None = None
        with llm.engine.run_batch() as run:
            handle = run.add(GenerationRequest(
                prompt=request.tokens, max_tokens=request.max_tokens, sampling=sampling, seed=request.seed,
                ignore_eos=True, remember=False,
            ))  # fmt: skip
            run.begin()
            active = handle.scheduled.active
            if active is not None and active.session.pending_tokens == 0:  # prefilled for another method
                decoding = perf_counter() - start, 0, Stats()
            while not run.is_over:
                for _, output in run.step():
                    now, n = perf_counter() - start, len(output.tokens)
                    if n == 0:  # a pass of the prefill
                        decoding = now, 0, Stats()
                        continue
                    first, last = first or now, now
                    decoding = decoding or (now, n, replace(handle.stats))
        if handle.finish is not None and handle.finish.error is not None:
            raise handle.finish.error
        assert decoding is not None  # a request has at least one token
        began, n_before, before = decoding
        stats, n_tokens = handle.stats, len(handle.tokens)
        times = {part: getattr(stats, name) - getattr(before, name) for part, name in SECONDS.items()}
        self.sample = handle.parts
        return BenchAnswer(
            text=handle.text, tokens=tuple(handle.tokens), n_tokens=n_tokens, n_prompt=len(request.tokens),
            first=first, seconds=last, decoded=n_tokens - n_before, decoding=last - began,
            steps=stats.steps, drafted=stats.drafted, accepted=stats.accepted, rejected=stats.rejected,
            draft_seconds=stats.draft_seconds - before.draft_seconds,
            decode_seconds=stats.seconds - before.seconds, times=times, by_position=stats.by_position,
            parts=handle.parts,
        )  # fmt: skip

    def _prefill_draft(self, request: BenchRequest) -> None:
        """Prefill the draft model before its first draft, so that decoding times match other systems'."""
        draft, translated = self.llm.draft, self.llm.drafting.cross_vocab != "off"  # to other tokens
        if draft is None or translated or len(request.tokens) <= MAX_FUSED_PREFILL:
            return
        session = draft.open()
        try:
            session.extend(draft.vocab.known(request.tokens))
            draft.forward([(session, session.pending_tokens)], RequiredOutputs())
        finally:
            session.close()  # leaves the prompt in the cache

    @property
    def learns(self) -> bool:
        """True if an answer may change later drafts."""
        return bool(learners(self.llm.drafter)) or self.llm.policy.learns

    def forget(self) -> None:
        """Discard what was learned from answers."""
        if isinstance(self.llm.drafter, LearningDrafter):
            self.llm.drafter.forget()
        self.llm.policy.forget()

    def memory(self) -> int | None:
        return self._models.memory + (0 if self.llm.draft is None else self._models.draft_memory)
