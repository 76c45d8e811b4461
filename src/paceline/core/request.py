"""One sequence being decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from paceline.core.errors import ContextError, UsageError
from paceline.core.guard import Guard
from paceline.core.ports import UNLIMITED, Budget, Caps, Drafter, Grammar, Memory, Session, Target
from paceline.core.record import Stats, StopReason
from paceline.core.rng import Noise, SeededRng
from paceline.core.sampling import Rng, Sampling
from paceline.core.typed import refusal

# Unread tokens that are few enough to be computed with the first draft, in one pass less.
TOGETHER = 32


def _never(_token: int) -> bool:
    return False


@dataclass(eq=False)
class Request:
    """One sequence being decoded, and the owner of its session and memory.

    stop: told every emitted token in order; true where the text so far ends the request.
    rule: how sampled drafts are verified (verify.py). grammar: what the text must follow; guard: the same,
    for drafters. noise: what a drafter may know of the draws; None where tokens are not drawn.
    logprobs: None, or how many of the likeliest tokens to report beside each emitted token's own.
    n_draft: the longest draft it allows, 0 for plain decoding. only: the drafters it allows, by name.
    n_cached: tokens of its prompt that did not have to be read.
    """

    session: Session
    memory: Memory
    sampling: Sampling
    rng: Rng
    max_tokens: int
    n_prompt: int
    eos: frozenset[int] = frozenset()
    stop: Callable[[int], bool] = _never
    rule: str = "auto"
    grammar: Grammar | None = None
    guard: Guard | None = None
    noise: Noise | None = None
    logprobs: int | None = None
    n_draft: int = UNLIMITED
    only: frozenset[str] | None = None
    n_cached: int = 0
    late: float = 0.0  # seconds spent on a step after it was recorded; they count in the next one
    n_tokens: int = 0
    stop_reason: StopReason | None = None
    error: Exception | None = None  # what ended it instead
    stats: Stats = field(default_factory=Stats)

    @property
    def is_over(self) -> bool:
        return self.stop_reason is not None or self.error is not None

    def cap(self, budget: Budget, caps: Caps, rows: int, chunk: int = UNLIMITED) -> Budget:
        """No more than can still be emitted (a step adds one token to what it accepts), than fits the
        context, and than the target takes: `rows` are this request's. In line with the request's grammar, and
        aware of its draws."""
        room = caps.n_ctx - len(self.session.tokens)
        depth = min(self.max_tokens - self.n_tokens - 1, room, self.n_draft)
        nodes = 0 if caps.rollback == "none" or not self.n_draft else min(room, rows - 1, caps.nodes)
        budget = budget.capped(depth, nodes, width=caps.branch)
        if self.guard is None and self.noise is None and chunk == budget.chunk and self.only is None:
            return budget
        noise = None if self.noise is None else self.noise.at(len(self.session.tokens))
        return replace(budget, grammar=self.guard, noise=noise, chunk=chunk, only=self.only)

    def judge(self, token: int, n_ctx: int) -> StopReason | None:
        """Count one emitted token; the reason to stop right after it, if there is one."""
        self.n_tokens += 1
        if token in self.eos:
            return "eos"
        if self.stop(token):
            return "stop"
        if self.n_tokens >= self.max_tokens:
            return "length"
        return "context" if self.n_prompt + self.n_tokens > n_ctx else None

    def close(self) -> None:
        try:
            self.memory.close()
        finally:
            self.session.close()


def start(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    stop: Callable[[int], bool] = _never,
    ignore_eos: bool = False,
    rule: str = "auto",
    grammar: Grammar | None = None,
    logprobs: int | None = None,
    n_draft: int = UNLIMITED,
    only: frozenset[str] | None = None,
    scope: str = "",
) -> Request:
    """A request ready for `decode`; its prompt is read there. scope: see Drafter.open. Raises UsageError for
    a prompt that is empty or does not fit, BusyError where all sessions are taken."""
    check(target, prompt, max_tokens, ends_itself=grammar is not None and ignore_eos)
    session = target.open()
    try:
        session.extend(prompt)
        n_cached = len(prompt) - 1 - session.unread
        memory = drafter.open(prompt, seed, session, scope)
    except BaseException:
        session.close()
        raise
    sampling, rng = sampling or Sampling(), SeededRng(seed)
    return Request(
        session=session,
        memory=memory,
        sampling=sampling,
        rng=rng,
        max_tokens=max_tokens,
        n_prompt=len(prompt),
        eos=frozenset() if ignore_eos else target.vocab.eos,
        stop=stop,
        rule=rule,
        grammar=grammar,
        guard=None if grammar is None else Guard(grammar, target.vocab.size),
        noise=Noise.of(sampling, rng),
        logprobs=logprobs,
        n_draft=n_draft,
        only=only,
        n_cached=n_cached,
    )


def check(target: Target, prompt: Sequence[int], max_tokens: int, *, ends_itself: bool) -> None:
    """Raise UsageError for what cannot be decoded, before anything is opened for it."""
    if not prompt:
        raise UsageError("the prompt is empty: give at least one token")
    if max_tokens < 1:
        raise refusal("max_tokens", max_tokens, "at least 1")
    if len(prompt) > target.caps.n_ctx:
        raise ContextError(
            f"the prompt has {len(prompt):,} tokens, the context {target.caps.n_ctx:,}: "
            "shorten it or ask for a larger context (n_ctx, -c)"
        )
    if min(prompt) < 0 or max(prompt) >= target.vocab.size:
        raise UsageError(f"the prompt has a token id outside the vocabulary of {target.vocab.size:,}")
    if ends_itself:
        raise UsageError("a grammar says where the text ends: it cannot be combined with ignore_eos")
