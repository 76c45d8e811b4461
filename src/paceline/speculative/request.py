"""GenerationRequest, the input of decoding, and ActiveRequest, its state while it is decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.speculative.errors import ContextError, UsageError
from paceline.speculative.grammar_pruning import NoEarlyEnd, SafeGrammar
from paceline.speculative.interfaces import (
    UNLIMITED,
    Budget,
    Caps,
    Drafter,
    DrafterState,
    Features,
    Grammar,
    PredictedState,
    SelectsPromptTokens,
    Session,
    Target,
)
from paceline.speculative.rng import GumbelNoise, SeededRng
from paceline.speculative.sampling import Rng, Sampling
from paceline.speculative.stats import Stats, Step, StopReason
from paceline.speculative.validation import invalid, setting, validate_fields

MAX_FUSED_PREFILL = 32  # pending tokens that are computed in one pass with the first draft


class GrammarSpec(Protocol):
    """A grammar that is not yet compiled for a vocabulary."""

    @property
    def name(self) -> str: ...

    def matches(self, text: str) -> bool:
        """Return whether `text` matches the whole grammar."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One generation. Raises UsageError for values that no model can take.
    should_stop: called with every emitted token; true ends the generation after it."""

    prompt: Sequence[int]  # token ids; the last one is the root of the first draft
    max_tokens: int = setting(256, "Most tokens to generate.", 1)
    min_tokens: int = setting(0, "Least tokens: no end or stop before.", 0)
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = setting(0, "Seed of the sampler.", 0)
    stop: tuple[str, ...] = ()  # strings that end the generation and are left out of it
    should_stop: Callable[[int], bool] | None = None
    ignore_eos: bool = False  # end-of-text tokens do not end the generation
    grammar: GrammarSpec | None = None  # the constraint on the whole text
    logprobs: int | None = setting(None, "Report the likeliest tokens.", 0)  # number per token
    n_draft: int = UNLIMITED  # the longest draft; 0 decodes plainly
    drafters: frozenset[str] | None = None  # names of the drafters that may be called; None allows all
    client: str = ""  # identifies the client; waiting clients take turns
    scope: str = ""  # past outputs serve as drafts only within one scope
    prediction: tuple[int, ...] = ()  # what the output is expected to be; drafters may follow it
    remember: bool = True  # the output may be stored on disk for later drafts
    timeout: float | None = None  # seconds from arrival to the last token; None is unlimited
    visible_control_tokens: Mapping[int, bytes] = field(default_factory=dict)  # that are part of the text

    def __post_init__(self) -> None:
        validate_fields(self)
        if not self.prompt:
            raise UsageError("the prompt is empty: give at least one token")
        if "" in self.stop:
            raise UsageError("an empty stop string would stop at once: leave it out")
        if self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens {self.min_tokens:,}: must be at most max_tokens, {self.max_tokens:,}"
            )
        if self.grammar is not None and self.ignore_eos:
            raise UsageError("a grammar says where the text ends: it cannot be combined with ignore_eos")

    def require_fits(self, target: Target) -> None:
        """Raise UsageError for token ids outside the vocabulary, ContextError for a long prompt."""
        size, n_ctx = target.vocab.size, target.caps.n_ctx
        if len(self.prompt) > n_ctx:
            raise ContextError(
                f"the prompt has {len(self.prompt):,} tokens, the context {n_ctx:,}: "
                "shorten it or ask for a larger context (n_ctx, -c)",
                len(self.prompt),
                n_ctx,
            )
        if min(self.prompt) < 0 or max(self.prompt) >= size:
            raise UsageError(f"the prompt has a token id outside the vocabulary of {size:,}")
        if self.prediction and not 0 <= min(self.prediction) <= max(self.prediction) < size:
            raise UsageError(f"the prediction has a token id outside the vocabulary of {size:,}")
        if (last := max(self.sampling.logit_bias, default=0)) >= size:
            raise UsageError(f"logit_bias for token {last}: the model's tokens are 0 to {size - 1}")
        if self.logprobs is not None and self.logprobs > size:
            raise invalid("logprobs", self.logprobs, f"between 0 and the model's {size} tokens")


class NoDrafterState:
    """The drafter state of a plain request."""

    def update(self, step: Step, features: Features) -> None: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class ActiveRequest:
    """A request that is being decoded. It owns its session and drafter state.
    stop: called with every emitted token in order; true ends the request.
    grammar: the compiled constraint; safe_grammar: the same for drafting, with errors caught.
    carried_over_seconds: time spent on the previous step after it was recorded; counted in the next step."""

    request: GenerationRequest
    session: Session
    drafter_state: DrafterState
    rng: Rng
    eos: frozenset[int]  # tokens that end it; empty if they are ignored
    stop: Callable[[int], bool] | None = None
    rule: str = "auto"  # the verification rule
    grammar: Grammar | None = None
    safe_grammar: SafeGrammar | None = None
    gumbel_noise: GumbelNoise | None = None  # the noise that a drafter may know; None if greedy
    n_cached: int = 0  # prompt tokens taken from the cache
    n_skipped: int = 0  # prompt tokens left out (PromptSelector)
    carried_over_seconds: float = 0.0
    n_tokens: int = 0
    stop_reason: StopReason | None = None
    error: Exception | None = None  # the failure that ended the request
    stats: Stats = field(default_factory=Stats)
    sampling: Sampling = field(init=False)
    n_draft: int = field(init=False)
    max_tokens: int = field(init=False)
    n_prompt: int = field(init=False)

    @property
    def is_over(self) -> bool:
        return self.stop_reason is not None or self.error is not None

    def __post_init__(self) -> None:
        # Copied into fields, as each step reads them.
        self.sampling, self.n_draft = self.request.sampling, self.request.n_draft
        self.max_tokens, self.n_prompt = self.request.max_tokens, len(self.request.prompt)

    def limit_budget(self, budget: Budget, caps: Caps, rows: int, chunk: int = UNLIMITED) -> Budget:
        """Limit a budget to the tokens left, the context and the target's capabilities.
        rows: this request's share of a pass."""
        if not budget.depth:
            return budget
        request = self.request
        room = caps.n_ctx - len(self.session.tokens)
        depth = min(self.max_tokens - self.n_tokens - 1, room, self.n_draft)
        nodes = 0 if caps.rollback == "none" else min(room, rows - 1, caps.max_tree_nodes)
        budget = budget.limited_to(depth, nodes, width=caps.max_branches)
        if (
            self.safe_grammar is None
            and self.gumbel_noise is None
            and chunk == budget.max_catch_up
            and request.drafters is None
        ):
            return budget
        noise = None if self.gumbel_noise is None else self.gumbel_noise.at(len(self.session.tokens))
        return budget.for_request(self.safe_grammar, noise, chunk, request.drafters)

    def commit_grammar(self, tokens: Sequence[int]) -> None:
        """Advance the grammar, which may end here."""
        assert self.grammar is not None
        assert self.safe_grammar is not None
        self.safe_grammar.commit(tokens)
        self.n_draft = 0 if self.grammar.is_slow else self.n_draft
        self.grammar = self.grammar.following
        self.safe_grammar = None if self.grammar is None else self.safe_grammar

    def check_stop(self, token: int, n_ctx: int) -> StopReason | None:
        """Count one emitted token; return the reason to stop after it, if any."""
        self.n_tokens += 1
        if token in self.eos:
            return "eos"
        if self.stop is not None and self.stop(token):
            return "stop"
        if self.n_tokens >= self.max_tokens:
            return "length"
        return "context" if self.n_prompt + self.n_tokens > n_ctx else None

    @property
    def context_length(self) -> int:
        """Tokens that the next one attends to."""
        return len(self.session.tokens) - self.n_skipped

    def close(self) -> None:
        try:
            self.drafter_state.close()
        finally:
            self.session.close()


def start_request(
    target: Target,
    drafter: Drafter,
    request: GenerationRequest,
    *,
    stop: Callable[[int], bool] | None = None,
    grammar: Grammar | None = None,
    rule: str = "auto",
) -> ActiveRequest:
    """Open a request for `decode`, which prefills the prompt.
    stop: replaces the request's `should_stop`.
    Raises UsageError for a request that does not fit the target, BusyError if all sessions are in use."""
    request.require_fits(target)
    prompt = request.prompt
    session: Any = target.open()
    try:
        n_selected = extend_with_prompt(target, session, prompt)
        n_cached = n_selected - 1 - session.pending_tokens
        state: DrafterState = NoDrafterState()
        if request.n_draft:
            state = drafter.open(prompt, request.seed, session, request.scope)
            if request.prediction and isinstance(state, PredictedState):
                state.predict(request.prediction)
    except BaseException:
        session.close()
        raise
    rng = SeededRng(request.seed)
    if request.min_tokens and not request.ignore_eos:
        grammar = NoEarlyEnd(grammar, target.vocab, request.min_tokens)
    return ActiveRequest(
        request=request,
        session=session,
        drafter_state=state,
        rng=rng,
        eos=frozenset() if request.ignore_eos else target.vocab.eos,
        stop=stop or request.should_stop,
        rule=rule,
        grammar=grammar,
        safe_grammar=None if grammar is None else SafeGrammar(grammar, target.vocab.size),
        gumbel_noise=GumbelNoise.of(request.sampling, rng),
        n_cached=n_cached,
        n_skipped=len(prompt) - n_selected,
    )


def extend_with_prompt(target: Target, session: Any, prompt: Sequence[int]) -> int:
    """Begin the session with the prompt; return how many of its tokens are not left out."""
    if not isinstance(target, SelectsPromptTokens) or target.prompt_selector is None:
        session.extend(prompt)
        return len(prompt)
    session.require_free()
    selected = target.prompt_selector.select(prompt)
    session.extend_sparse(prompt, selected)
    return len(selected)
