"""Paceline with some drafter, as a System."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from paceline.core.decode import Request, decode, start
from paceline.core.ports import Learner, Want
from paceline.core.record import Stats
from paceline.core.request import TOGETHER
from paceline.engines.stream import TextStream
from paceline.lab.bench.method import Method
from paceline.lab.bench.models import Models
from paceline.lab.system import Answer, Ask, Parts

NOTHING = Want()


@dataclass
class Clock:
    """What came of one request, and when."""

    text: TextStream
    parts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    # What came before decoding alone: the prompt; and the first step, of a short prompt, which is read with
    # it, and where several decode together.
    apart: bool = False
    read: float = 0.0
    n_read: int = 0
    beginning: Stats = field(default_factory=Stats)


class Paceline:
    """Decodes what it is asked in one loop, all requests in each pass. The text is made as it comes, as for a
    user, so that its cost counts."""

    def __init__(
        self, method: Method, models: Models, draft: Path | None, *, keep_prompts: bool = False
    ) -> None:
        self.name = method.name
        self.method = method
        self._models = models
        self._keep_prompts = keep_prompts
        self._draft = draft if method.uses_draft else None
        self.llm = models.llm(method.drafting, self._draft)

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        llm = self.llm
        if not self._keep_prompts:
            llm.target.forget()
            if llm.draft is not None:
                llm.draft.forget()
        clocks = [Clock(TextStream(llm.target.text.piece)) for _ in asks]
        requests: list[Request] = []
        began = perf_counter()
        if len(asks) == 1:
            self._read_draft(asks[0])
        try:
            for ask, clock in zip(asks, clocks, strict=True):
                requests.append(
                    start(
                        llm.target,
                        llm.drafter,
                        ask.tokens,
                        max_tokens=ask.max_tokens,
                        sampling=ask.sampling,
                        seed=ask.seed,
                        stop=clock.text,
                        ignore_eos=ask.ignore_eos,
                        rule=llm.drafting.verify,
                    )
                )
            # Requests are told apart by identity: their order is that of the asks.
            clock_of = {id(request): clock for request, clock in zip(requests, clocks, strict=True)}
            if len(asks) == 1 and requests[0].session.unread == 0:  # it was read for another method
                clocks[0].read, clocks[0].apart = perf_counter() - began, True
            for request, step in decode(llm.target, llm.drafter, llm.policy, requests):
                clock = clock_of[id(request)]
                if not step.tokens:
                    clock.read, clock.apart = perf_counter() - began, len(asks) == 1
                    continue
                clock.parts += [text for text, _ in clock.text.take()]
                clock.last = perf_counter() - began
                if not clock.tokens:
                    clock.first = clock.last
                    if not clock.apart:
                        clock.read, clock.n_read = clock.last, len(step.tokens)
                        clock.beginning = replace(request.stats)
                clock.tokens += step.tokens
        finally:
            for request in requests:
                request.close()
        return [
            answered(ask, clock, request.stats)
            for ask, clock, request in zip(asks, clocks, requests, strict=True)
        ]

    def _read_draft(self, ask: Ask) -> None:
        """The draft reads a prompt now, not when it first drafts, so that decoding is what other systems'
        clocks call decoding."""
        draft = self.llm.draft
        if draft is None or len(ask.tokens) <= TOGETHER or self.llm.drafting.cross_vocab != "off":
            return  # what another vocabulary's draft reads are other tokens
        session = draft.open()
        try:
            session.extend([token if token < draft.vocab.size else 0 for token in ask.tokens])
            draft.forward([(session, session.unread)], NOTHING)
        finally:
            session.close()  # which leaves the prompt for the next one

    @property
    def learns(self) -> bool:
        """Whether one answer may change the drafts of the next."""
        drafter = self.llm.drafter
        remembers = isinstance(drafter, Learner) and bool(getattr(drafter, "learners", True))
        return remembers or self.llm.policy.learns

    def forget(self) -> None:
        """What the drafter has learned from answers."""
        if isinstance(self.llm.drafter, Learner):
            self.llm.drafter.forget()
        self.llm.policy.forget()

    def memory(self) -> int | None:
        return self._models.memory + (0 if self._draft is None else self._models.added[self._draft])

    def close(self) -> None:
        """The models are not its own."""


def answered(ask: Ask, clock: Clock, stats: Stats) -> Answer:
    clock.parts += [text for text, _ in clock.text.finish()]
    before = clock.beginning
    parts = Parts(
        steps=stats.steps - before.steps,
        drafted=stats.drafted - before.drafted,
        draft_seconds=stats.draft_seconds - before.draft_seconds,
        forward_seconds=stats.forward_seconds - before.forward_seconds,
        seconds=stats.seconds - before.seconds,
    )
    return Answer(
        text="".join(clock.parts),
        tokens=tuple(clock.tokens),
        n_tokens=len(clock.tokens),
        n_prompt=len(ask.tokens),
        first=clock.first,
        seconds=clock.last,
        decoded=len(clock.tokens) - clock.n_read,
        decoding=clock.last - clock.read,
        steps=stats.steps,
        drafted=stats.drafted,
        accepted=stats.accepted,
        rejected=stats.rejected,
        parts=parts,
    )
