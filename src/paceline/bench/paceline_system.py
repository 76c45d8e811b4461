"""Paceline with some drafter, as a System."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from paceline.bench.method import Method
from paceline.bench.models import LoadedModels
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.speculative.interfaces import LearningDrafter, RequiredOutputs
from paceline.speculative.request import MAX_FUSED_PREFILL, GenerationRequest
from paceline.speculative.stats import Stats

NOTHING = RequiredOutputs()


class PacelineSystem:
    """Paceline's engine. It detokenizes during decoding, as for a user, so that the cost counts."""

    def __init__(self, method: Method, models: LoadedModels) -> None:
        self.name = method.name
        self._models = models
        self.llm = models.llm(method)

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        llm = self.llm
        if not self._models.keep_prompts:
            llm.target.forget()
            if llm.draft is not None:
                llm.draft.forget()
        run, start = llm.engine.run_batch(), perf_counter()
        self._prefill_draft(ask)
        first = last = 0.0  # arrival of the first and the last tokens
        decoding: tuple[float, int, Stats] | None = (
            None  # its start, and the tokens and statistics until then
        )
        try:
            request = GenerationRequest(
                prompt=ask.tokens,
                max_tokens=ask.max_tokens,
                sampling=ask.sampling,
                seed=ask.seed,
                ignore_eos=ask.ignore_eos,
                remember=False,
            )
            handle = run.add(request)
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
        finally:
            with llm.engine.exclusive():
                run.close()
        if handle.finish is not None and handle.finish.error is not None:
            raise handle.finish.error
        assert decoding is not None  # a request has at least one token
        began, n_before, before = decoding
        stats, n_tokens = handle.stats, len(handle.tokens)
        return BenchAnswer(
            text=handle.text,
            tokens=tuple(handle.tokens),
            n_tokens=n_tokens,
            n_prompt=len(ask.tokens),
            first=first,
            seconds=last,
            decoded=n_tokens - n_before,
            decoding=last - began,
            steps=stats.steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            rejected=stats.rejected,
            draft_seconds=stats.draft_seconds - before.draft_seconds,
            decode_seconds=stats.seconds - before.seconds,
        )

    def _prefill_draft(self, ask: BenchRequest) -> None:
        """Prefill the draft model now rather than at its first draft, so that decoding times match those of
        other systems."""
        draft = self.llm.draft
        if draft is None or len(ask.tokens) <= MAX_FUSED_PREFILL or self.llm.drafting.cross_vocab != "off":
            return  # a draft of another vocabulary has other tokens
        session = draft.open()
        try:
            session.extend([token if token < draft.vocab.size else 0 for token in ask.tokens])
            draft.forward([(session, session.pending_tokens)], NOTHING)
        finally:
            session.close()  # leaves the prompt in the cache

    @property
    def learns(self) -> bool:
        """True if an answer may change later drafts."""
        drafter = self.llm.drafter
        remembers = isinstance(drafter, LearningDrafter) and bool(getattr(drafter, "learners", True))
        return remembers or self.llm.policy.learns

    def forget(self) -> None:
        """Discard what was learned from answers."""
        if isinstance(self.llm.drafter, LearningDrafter):
            self.llm.drafter.forget()
        self.llm.policy.forget()

    def memory(self) -> int | None:
        return self._models.memory + (0 if self.llm.draft is None else self._models.draft_memory)

    def close(self) -> None:
        """Do nothing: LoadedModels owns the models."""
