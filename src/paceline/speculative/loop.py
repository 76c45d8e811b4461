"""The decoding loop.

Plain decoding is the loop with empty drafts, and a single request is a batch of one. Prompts are prefilled in
chunks beside requests that are already decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from paceline.speculative.chunked_prefill import split_chunk
from paceline.speculative.errors import ContractError, LogitsError
from paceline.speculative.grammar_pruning import prune_tree
from paceline.speculative.interfaces import NO_OUTPUTS, UNLIMITED, Budget, Drafter, ForwardOutput, Target
from paceline.speculative.policy.interface import DraftPolicy, fits_budget
from paceline.speculative.request import MAX_FUSED_PREFILL, ActiveRequest, start_request
from paceline.speculative.sampling import logprob
from paceline.speculative.stats import TARGET, Logprob, Step, StepTimes, StopReason
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from paceline.speculative.verify import Verdict, verify

__all__ = ["ActiveRequest", "advance_requests", "decode", "start_request"]

NO_COUNTS: Mapping[str, int] = Counter()

Clock = Callable[[], float]  # seconds; a replay's clock advances by the known costs of passes


class Timer:
    """A stopwatch: each call returns the seconds since the previous one."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._last = clock, clock()

    def __call__(self) -> float:
        before, self._last = self._last, self._clock()
        return self._last - before


def advance_requests(
    target: Target,
    drafter: Drafter,
    policy: DraftPolicy,
    requests: Sequence[ActiveRequest],
    clock: Clock = perf_counter,
    chunk: int = UNLIMITED,
) -> list[tuple[ActiveRequest, Step]]:
    """Run one pass: decoding requests draft, verify and commit; the others prefill.
    chunk: the most prompt tokens of the pass.
    An exception in one request ends only that request (`ActiveRequest.error`). Returns the steps of the
    decoding requests in order, then those of the prefilling ones."""
    timer = Timer(clock)
    pending_tokens = [request.session.pending_tokens for request in requests]
    decoding = requests
    prefilling: list[tuple[ActiveRequest, int]] = []  # list[int]() takes a microsecond
    if any(pending_tokens):
        decoding, prefilling = partition_requests(
            requests, pending_tokens, min(chunk, target.caps.max_prefill_tokens)
        )
    n = len(decoding)
    n_prefill = sum([tokens for _, tokens in prefilling])
    trees, proposals, drafting, deciding = draft(target, drafter, policy, decoding, n_prefill, chunk, timer)
    batch: list[tuple[Any, DraftTree | int]] = [(r.session, t) for r, t in zip(decoding, trees, strict=True)]
    batch += [(request.session, tokens) for request, tokens in prefilling]
    drafted_for = any([request.n_draft for request in decoding])  # noqa: C419  # a list is faster
    drafting_on = drafted_for or any([request.n_draft for request, _ in prefilling])  # noqa: C419
    outs = target.forward(batch, drafter.required_outputs if drafting_on else NO_OUTPUTS)
    forward_seconds = timer() / len(batch)
    shared = StepTimes(drafting / n, forward_seconds, other=deciding / n) if n else StepTimes()
    going: list[ActiveRequest] = []
    steps: list[Step] = []
    for request, tree, proposal, out in zip(decoding, trees, proposals, outs, strict=False):
        try:
            steps.append(verify_and_commit(request, tree, proposal, out, target, shared, timer))
            going.append(request)
        except Exception as error:  # any failure concerns this request alone
            request.error = error
            timer()
    done = list(zip(going, steps, strict=True))
    for (request, _), out in zip(prefilling, outs[n:], strict=True):
        done.append((request, prefill(request, out, StepTimes(forward=forward_seconds))))
    if steps and drafted_for:
        policy.update(going, steps)
        carried_over = timer() / n
        for request in going:
            request.carried_over_seconds += carried_over
    return done


def partition_requests(
    requests: Sequence[ActiveRequest], pending_tokens: Sequence[int], chunk: int
) -> tuple[list[ActiveRequest], list[tuple[ActiveRequest, int]]]:
    """Return the requests that decode in this pass, and those that prefill with their numbers of tokens."""
    decoding, prefilling = list[ActiveRequest](), list[tuple[ActiveRequest, int]]()
    for request, n, pending in zip(requests, split_chunk(pending_tokens, chunk), pending_tokens, strict=True):
        if n == pending <= MAX_FUSED_PREFILL:
            decoding.append(request)
        elif n:
            prefilling.append((request, n))
    return decoding, prefilling


def draft(
    target: Target,
    drafter: Drafter,
    policy: DraftPolicy,
    requests: Sequence[ActiveRequest],
    prefill_tokens: int,
    chunk: int,
    timer: Callable[[], float],
) -> tuple[Sequence[DraftTree], Sequence[DraftTree], float, float]:
    """Return the trees to verify, the proposals, and the seconds of drafting and of deciding.
    prefill_tokens: prompt tokens of the pass."""
    n = len(requests)
    n_drafted_for = sum([request.n_draft > 0 for request in requests])
    if not n_drafted_for:
        return [EMPTY] * n, [EMPTY] * n, 0.0, 0.0
    rows = target.caps.max_batch_tokens // n
    limits = policy.budget(requests, prefill_tokens)
    budgets = [r.limit_budget(b, target.caps, rows, chunk) for r, b in zip(requests, limits, strict=True)]
    deciding = timer()
    proposed = drafter.propose(
        [(r.drafter_state, b) for r, b in zip(requests, budgets, strict=True) if r.n_draft]
    )
    drafting = timer()
    if len(proposed) != n_drafted_for:
        raise ContractError(f"{drafter.name}: {len(proposed)} proposals for {n_drafted_for} requests")
    if n_drafted_for < n:
        remaining = iter(proposed)
        proposed = [next(remaining) if request.n_draft else EMPTY for request in requests]
    proposals = [
        t if r.safe_grammar is None or not r.n_draft else prune_tree(t, r.safe_grammar)
        for r, t in zip(requests, proposed, strict=True)
    ]
    trees = policy.select(requests, budgets, proposals)
    check_proposals(drafter, target, trees, budgets)
    return trees, proposals, drafting, deciding + timer()


def prefill(request: ActiveRequest, out: ForwardOutput, times: StepTimes) -> Step:
    """Record one prefilled chunk of a prompt."""
    step = Step((), (), (), {}, {}, None, times, batch_tokens=out.computed)
    if out.features.hidden is not None:
        request.drafter_state.update(step, out.features)
    request.stats.add(step)
    return step


def verify_and_commit(
    request: ActiveRequest,
    tree: DraftTree,
    proposal: DraftTree,
    out: ForwardOutput,
    target: Target,
    shared: StepTimes,
    timer: Callable[[], float],
) -> Step:
    """Verify one request's draft and commit the accepted tokens. shared: its share of the pass's times."""
    if request.safe_grammar is not None and request.safe_grammar.error is not None:
        raise request.safe_grammar.error
    history = request.session.tokens
    try:
        verdict = verify(tree, out, request.sampling, history, request.rng, request.rule, request.grammar)
    except LogitsError as error:
        raise with_model_name(error, target) from error
    verifying = timer()
    tokens, sources, reason = truncate_at_stop(request, tree, verdict, target.caps.n_ctx)
    path = verdict.path[: len(tokens) - 1]
    logprobs = token_logprobs(request, out, path, tokens)
    if request.grammar is not None:
        request.commit_grammar(tokens)
    request.session.commit(path, tokens[-1])
    committing = timer()
    step = Step(
        tokens=tokens,
        sources=sources,
        path=path,
        tree=tree,
        proposal=proposal,
        drafted=Counter(tree.drafter_names) if tree.tokens else NO_COUNTS,
        accepted=Counter([tree.source[node] for node in verdict.path]) if verdict.path else NO_COUNTS,
        stop_reason=reason,
        times=StepTimes(
            shared.draft, shared.forward, verifying, committing, shared.other + request.carried_over_seconds
        ),
        logprobs=logprobs,
        batch_tokens=out.computed,
    )
    request.stop_reason = reason
    request.stats.add(step)
    request.drafter_state.update(step, out.features)
    request.carried_over_seconds = timer()
    return step


def truncate_at_stop(
    request: ActiveRequest, tree: DraftTree, verdict: Verdict, n_ctx: int
) -> tuple[tuple[int, ...], tuple[str, ...], StopReason | None]:
    """Return the emitted tokens and their sources, cut where the request stops, and the reason."""
    tokens: list[int] = []
    sources: list[str] = []
    reason: StopReason | None = None
    for token, source in [*((tree.tokens[i], tree.source[i]) for i in verdict.path), (verdict.token, TARGET)]:
        tokens.append(token)
        sources.append(source)
        reason = request.check_stop(token, n_ctx)
        if reason is not None:
            break
    return tuple(tokens), tuple(sources), reason


def token_logprobs(
    request: ActiveRequest, out: ForwardOutput, path: Sequence[int], tokens: Sequence[int]
) -> tuple[Logprob, ...]:
    """Return the log-probabilities of the emitted tokens, if the request wants them."""
    n = request.request.logprobs
    if n is None:
        return ()
    rows = zip((ROOT, *path), tokens, strict=True)
    return tuple(Logprob(*logprob(out.logits(node + 1), token, n)) for node, token in rows)


def with_model_name(error: LogitsError, target: Target) -> LogitsError:
    """Return the error with the model's name and advice."""
    return LogitsError(
        f"{target.origin}: {error}: the file is damaged (download it again), or its values are too large for "
        "how it is run (try without flash_attention, -fa off, or cache_type f32)"
    )


def check_proposals(
    drafter: Drafter, target: Target, trees: Sequence[DraftTree], budgets: Sequence[Budget]
) -> None:
    """Raise ContractError for drafts beyond their budget or the vocabulary, before the backend sees them."""
    size = target.vocab.size
    for tree, budget in zip(trees, budgets, strict=True):
        if len(tree) == 0:
            continue
        if not fits_budget(tree, budget):
            raise ContractError(f"{drafter.name}: proposed more than its budget {budget}")
        if min(tree.tokens) < 0 or max(tree.tokens) >= size:
            raise ContractError(f"{drafter.name}: proposed a token outside the target's {size:,}")


def decode(
    target: Target,
    drafter: Drafter,
    policy: DraftPolicy,
    requests: Sequence[ActiveRequest],
    clock: Clock = perf_counter,
    chunk: int = UNLIMITED,
) -> Iterator[tuple[ActiveRequest, Step]]:
    """Decode all requests to their ends in shared passes, and yield each step.
    Prefill steps have no tokens. The caller closes the requests. If the generator is dropped, all sessions
    stay consistent. A failed request ends alone; the first error is raised at the end."""
    while active := [r for r in requests if not r.is_over]:
        yield from advance_requests(target, drafter, policy, active, clock, chunk)
    for request in requests:
        if request.error is not None:
            raise request.error
