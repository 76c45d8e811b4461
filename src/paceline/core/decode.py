"""The loop. Plain decoding is the loop with empty drafts; one request is a batch of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from paceline.core.belief import Mood
from paceline.core.errors import ContractError, LogitsError, UsageError
from paceline.core.guard import Guard
from paceline.core.policy import Policy, fits
from paceline.core.ports import Budget, Caps, Drafter, Forward, Grammar, Memory, Session, Target
from paceline.core.prune import prune
from paceline.core.record import TARGET, Logprob, Stats, Step, StopReason, Times
from paceline.core.rng import Noise, Rng, SeededRng
from paceline.core.sampling import Sampling, logprob
from paceline.core.tree import ROOT, DraftTree
from paceline.core.typed import refusal
from paceline.core.verify import Verdict, verify

Clock = Callable[[], float]  # seconds; a replay has one that runs on what passes are known to cost


def _never(_token: int) -> bool:
    return False


@dataclass(eq=False)
class Request:
    """One sequence being decoded, and the owner of its session and memory.

    stop: told every emitted token in order; true where the text so far ends the request.
    rule: how sampled drafts are verified (verify.py). grammar: what the text must follow; guard: the same,
    for drafters. noise: what a drafter may know of the draws; None where tokens are not drawn.
    logprobs: None, or how many of the likeliest tokens to report beside each emitted token's own.
    mood: what the policy has seen of its guesses (belief.py).
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
    mood: Mood = field(default_factory=dict)
    late: float = 0.0  # seconds spent on a step after it was recorded; they count in the next one
    n_tokens: int = 0
    stop_reason: StopReason | None = None
    error: Exception | None = None  # what ended it instead
    stats: Stats = field(default_factory=Stats)

    @property
    def is_over(self) -> bool:
        return self.stop_reason is not None or self.error is not None

    def cap(self, budget: Budget, caps: Caps) -> Budget:
        """No more than can still be emitted (a step adds one token to what it accepts), than fits the
        context, and than the target takes; in line with the request's grammar, and aware of its draws."""
        room = caps.n_ctx - len(self.session.tokens)
        depth = min(self.max_tokens - self.n_tokens - 1, room)
        budget = budget.capped(depth, nodes=min(room, caps.rows - 1), width=caps.branch)
        if self.guard is None and self.noise is None:
            return budget
        noise = None if self.noise is None else self.noise.at(len(self.session.tokens))
        return replace(budget, grammar=self.guard, noise=noise)

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
) -> Request:
    """A request ready for `decode`. Raises UsageError for a prompt that is empty or does not fit."""
    if not prompt:
        raise UsageError("the prompt is empty: give at least one token")
    if max_tokens < 1:
        raise refusal("max_tokens", max_tokens, "at least 1")
    if len(prompt) > target.caps.n_ctx:
        raise UsageError(
            f"the prompt has {len(prompt):,} tokens, the context {target.caps.n_ctx:,}: "
            "shorten it or ask for a larger context (-c)"
        )
    if min(prompt) < 0 or max(prompt) >= target.vocab.size:
        raise UsageError(f"the prompt has a token id outside the vocabulary of {target.vocab.size:,}")
    if grammar is not None and ignore_eos:
        raise UsageError("a grammar says where the text ends: it cannot be combined with ignore_eos")
    session = target.open()
    try:
        session.prefill(prompt)
        memory = drafter.open(prompt, seed)
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
    )


class Laps:
    """Each call tells the seconds since the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._last = clock, clock()

    def __call__(self) -> float:
        before, self._last = self._last, self._clock()
        return self._last - before


def advance(
    target: Target, drafter: Drafter, policy: Policy, requests: Sequence[Request], clock: Clock = perf_counter
) -> list[Step]:
    """One step of every request: draft, one forward pass, verify, commit.

    What goes wrong with one request, its grammar or its rows, ends that one alone (`Request.error`); the
    steps are those of the others, in order. Where there are none, the error is raised."""
    n, lap = len(requests), Laps(clock)
    budgets = [r.cap(b, target.caps) for r, b in zip(requests, policy.budgets(requests), strict=True)]
    deciding = lap()
    proposals = drafter.propose([(r.memory, b) for r, b in zip(requests, budgets, strict=True)])
    drafting = lap()
    if len(proposals) != n:
        raise ContractError(f"{drafter.name}: {len(proposals)} proposals for {n} requests")
    proposals = [
        t if r.guard is None else prune(t, r.guard) for r, t in zip(requests, proposals, strict=True)
    ]
    trees = policy.choose(requests, budgets, proposals)
    check(drafter, target, trees, budgets)
    deciding += lap()
    outs = target.forward([(r.session, t) for r, t in zip(requests, trees, strict=True)], drafter.wants)
    shared = Times(drafting / n, lap() / n, other=deciding / n)
    going, steps = [], []
    for request, tree, out in zip(requests, trees, outs, strict=True):
        try:
            steps.append(settle(request, tree, out, target, shared, lap))
            going.append(request)
        except Exception as error:  # whatever it is, the others' steps are theirs
            request.error = error
            lap()
    if not steps:
        raise next(r.error for r in requests if r.error is not None)
    policy.observe(going, steps)
    late = lap() / n
    for request in going:
        request.late += late
    return steps


def settle(
    request: Request, tree: DraftTree, out: Forward, target: Target, shared: Times, lap: Callable[[], float]
) -> Step:
    """Verify one request's draft and commit what is kept of it. shared: its part of what all took."""
    if request.guard is not None and request.guard.error is not None:
        raise request.guard.error
    history = request.session.tokens
    try:
        verdict = verify(tree, out, request.sampling, history, request.rng, request.rule, request.grammar)
    except LogitsError as error:
        raise named(error, target) from error
    verifying = lap()
    tokens, sources, reason = cut(request, tree, verdict, target.caps.n_ctx)
    path = verdict.path[: len(tokens) - 1]
    logprobs = told(request, out, path, tokens)
    if request.guard is not None:
        request.guard.commit(tokens)
    request.session.keep(path, tokens[-1])
    keeping = lap()
    step = Step(
        tokens=tokens,
        sources=sources,
        path=path,
        tree=tree,
        drafted=Counter(tree.drafted),
        accepted=Counter(tree.source[node] for node in verdict.path),
        stop_reason=reason,
        times=Times(shared.draft, shared.forward, verifying, keeping, shared.other + request.late),
        logprobs=logprobs,
    )
    request.stop_reason = reason
    request.stats.add(step)
    request.memory.observe(step, out.features)
    request.late = lap()
    return step


def cut(
    request: Request, tree: DraftTree, verdict: Verdict, n_ctx: int
) -> tuple[tuple[int, ...], tuple[str, ...], StopReason | None]:
    """The tokens a verdict emits and their sources, judged one by one and cut where the request stops."""
    tokens: list[int] = []
    sources: list[str] = []
    reason: StopReason | None = None
    for token, source in [*((tree.tokens[i], tree.source[i]) for i in verdict.path), (verdict.token, TARGET)]:
        tokens.append(token)
        sources.append(source)
        reason = request.judge(token, n_ctx)
        if reason is not None:
            break
    return tuple(tokens), tuple(sources), reason


def told(request: Request, out: Forward, path: Sequence[int], tokens: Sequence[int]) -> tuple[Logprob, ...]:
    """What the target's own rows say of the emitted tokens, where the request wants to know."""
    if request.logprobs is None:
        return ()
    rows = zip((ROOT, *path), tokens, strict=True)
    return tuple(Logprob(*logprob(out.logits(node + 1), token, request.logprobs)) for node, token in rows)


def named(error: LogitsError, target: Target) -> LogitsError:
    """With whose logits they are, and what can be done."""
    return LogitsError(
        f"{target.origin}: {error}: the file is damaged (download it again), or its values are too large for "
        "how it is run (try -fa off, or --cache-type f32)"
    )


def check(drafter: Drafter, target: Target, trees: Sequence[DraftTree], budgets: Sequence[Budget]) -> None:
    """A drafter may waste time but not corrupt: what it proposes is checked before an engine sees it."""
    size = target.vocab.size
    for tree, budget in zip(trees, budgets, strict=True):
        if len(tree) == 0:
            continue
        if not fits(tree, budget):
            raise ContractError(f"{drafter.name}: proposed more than its budget {budget}")
        if min(tree.tokens) < 0 or max(tree.tokens) >= size:
            raise ContractError(f"{drafter.name}: proposed a token outside the target's {size:,}")


def decode(
    target: Target,
    drafter: Drafter,
    policy: Policy,
    requests: Sequence[Request],
    clock: Clock = perf_counter,
) -> Iterator[tuple[Request, Step]]:
    """Decode every request to its end, all of them in each forward pass; yields each step as it happens.

    clock: what the steps' times are told by. The caller closes the requests. A generator that is dropped in
    mid-way leaves every session consistent. A request that fails ends alone; its error is raised at the end,
    the first one's where there are several.
    """
    while active := [r for r in requests if not r.is_over]:
        steps = advance(target, drafter, policy, active, clock)
        yield from zip([r for r in active if r.error is None], steps, strict=True)
    for request in requests:
        if request.error is not None:
            raise request.error
