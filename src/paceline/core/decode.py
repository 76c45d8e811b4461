"""The loop. Plain decoding is the loop with empty drafts; one request is a batch of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from paceline.core.belief import Mood
from paceline.core.errors import ContractError, LogitsError, UsageError
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
    rule: how sampled drafts are verified (verify.py). grammar: what the text must follow. noise: what a
    drafter may know of the draws; None where tokens are not drawn.
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
    noise: Noise | None = None
    logprobs: int | None = None
    mood: Mood = field(default_factory=dict)
    late: float = 0.0  # seconds spent on a step after it was recorded; they count in the next one
    n_tokens: int = 0
    stop_reason: StopReason | None = None
    stats: Stats = field(default_factory=Stats)

    def cap(self, budget: Budget, caps: Caps) -> Budget:
        """No more than can still be emitted (a step adds one token to what it accepts), than fits the
        context, and than the target takes; in line with the request's grammar, and aware of its draws."""
        room = caps.n_ctx - len(self.session.tokens)
        depth = min(self.max_tokens - self.n_tokens - 1, room)
        budget = budget.capped(depth, nodes=min(room, caps.rows - 1), width=caps.branch)
        if self.grammar is None and self.noise is None:
            return budget
        noise = None if self.noise is None else self.noise.at(len(self.session.tokens))
        return replace(budget, grammar=self.grammar, noise=noise)

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
        noise=Noise.of(sampling, rng),
        logprobs=logprobs,
    )


def advance(
    target: Target, drafter: Drafter, policy: Policy, requests: Sequence[Request], clock: Clock = perf_counter
) -> list[Step]:
    """One step of every request: draft, one forward pass, verify, commit."""
    began = clock()
    budgets = [r.cap(b, target.caps) for r, b in zip(requests, policy.budgets(requests), strict=True)]
    asked = clock()
    proposals = drafter.propose([(r.memory, b) for r, b in zip(requests, budgets, strict=True)])
    proposed = clock()
    if len(proposals) != len(requests):
        raise ContractError(f"{drafter.name}: {len(proposals)} proposals for {len(requests)} requests")
    proposals = [
        t if r.grammar is None else prune(t, r.grammar) for r, t in zip(requests, proposals, strict=True)
    ]
    trees = policy.choose(requests, budgets, proposals)
    check(drafter, target, trees, budgets)
    chosen = clock()
    outs = target.forward([(r.session, t) for r, t in zip(requests, trees, strict=True)], drafter.wants)
    n, now = len(requests), clock()
    draft, forward = (proposed - asked) / n, (now - chosen) / n
    other = (chosen - began) / n - draft
    steps = []
    for request, tree, out in zip(requests, trees, outs, strict=True):
        t0 = now
        try:
            verdict = verify(
                tree,
                out,
                request.sampling,
                request.session.tokens,
                request.rng,
                request.rule,
                request.grammar,
            )
        except LogitsError as error:
            raise named(error, target) from error
        t1 = clock()
        tokens, sources, reason = cut(request, tree, verdict, target.caps.n_ctx)
        path = verdict.path[: len(tokens) - 1]
        logprobs = told(request, out, path, tokens)
        if request.grammar is not None:
            request.grammar.commit(tokens)
        request.session.keep(path, tokens[-1])
        t2 = clock()
        step = Step(
            tokens=tokens,
            sources=sources,
            path=path,
            tree=tree,
            drafted=Counter(tree.drafted),
            accepted=Counter(tree.source[node] for node in verdict.path),
            stop_reason=reason,
            times=Times(draft, forward, verify=t1 - t0, keep=t2 - t1, other=other + request.late),
            logprobs=logprobs,
        )
        request.stop_reason = reason
        request.stats.add(step)
        request.memory.observe(step, out.features)
        steps.append(step)
        now = clock()
        request.late = now - t2
    policy.observe(requests, steps)
    late = (clock() - now) / n
    for request in requests:
        request.late += late
    return steps


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
    mid-way leaves every session consistent.
    """
    active = [r for r in requests if r.stop_reason is None]
    while active:
        yield from zip(active, advance(target, drafter, policy, active, clock), strict=True)
        active = [r for r in active if r.stop_reason is None]
