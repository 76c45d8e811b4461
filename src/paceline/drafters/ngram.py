"""llama.cpp's n-gram cache: the tokens that most often followed the last one to four tokens.

Three counts are looked up in turn for each token: of this request's text (context), of earlier outputs
(dynamic), of a corpus (static). Context and dynamic use the longest n-gram whose continuation is frequent and
clear, by lax and by strict thresholds. Static has n-grams of two tokens; its counts also weigh the candidates
of the others: a candidate's count is multiplied by 100 times its static count, if any.

Rules and thresholds are those of llama.cpp's common/ngram-cache.cpp, so that chains equal llama-lookup's. A
node's score is its share of the counts, smoothed by 4, 2, 1 or 0.5 further occurrences for n-grams of 1 to 4
tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from paceline.drafters.ngram_cache import (
    NGRAM_MAX,
    NO_CONTINUATIONS,
    STATIC_NGRAM_LENGTH,
    Continuations,
    Ngram,
    NgramCache,
)
from paceline.drafters.parts import DrafterInputs, Scopes, SingleDrafter, best_first
from paceline.speculative.errors import VocabError
from paceline.speculative.interfaces import Budget, Features, Session
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, DraftTree

# By n-gram length: the least total count, and the least share of the best continuation in percent.
Rule = tuple[tuple[int, int], ...]
LAX_THRESHOLDS: Rule = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT_THRESHOLDS: Rule = ((4, 75), (3, 66), (2, 66), (2, 66))
Candidate = tuple[int, float, float]  # a token, its share of what followed, its score
MAX_LEARNED_TOKENS = 1_000_000


class Counts:
    """Growing counts of n-grams of 1 to NGRAM_MAX tokens."""

    def __init__(self) -> None:
        # An n-gram seen once, as most are, stores only its token, which halves the memory.
        self._seen: dict[Ngram, int | dict[int, int]] = {}

    def add(self, tokens: Sequence[int], start: int = 0) -> None:
        """Count tokens[start:], each after the n-grams before it."""
        seen = self._seen
        for i in range(max(start, 1), len(tokens)):
            token = tokens[i]
            for n in range(1, min(NGRAM_MAX, i) + 1):
                ngram = tuple(tokens[i - n : i])
                part = seen.get(ngram)
                if part is None:
                    seen[ngram] = token
                elif not isinstance(part, int):
                    part[token] = part.get(token, 0) + 1
                else:
                    seen[ngram] = {token: 2} if part == token else {part: 1, token: 1}

    def continuations(self, ngram: Ngram) -> Continuations:
        """Return the tokens that followed and their counts, or NO_CONTINUATIONS."""
        part = self._seen.get(ngram)
        if part is None:
            return NO_CONTINUATIONS
        if isinstance(part, int):
            return (part,), (1,)
        return tuple(part), tuple(part.values())

    def __len__(self) -> int:
        """Return the number of n-grams."""
        return len(self._seen)

    def forget(self) -> None:
        self._seen = {}

    def thin(self, least: int) -> None:
        """Drop the n-grams seen fewer than `least` times."""
        self._seen = {n: part for n, part in self._seen.items() if _total(part) >= least}


def _total(part: int | dict[int, int]) -> int:
    return 1 if isinstance(part, int) else sum(part.values())


class NgramState:
    """A request's text and its counts."""

    def __init__(
        self, prompt: Sequence[int], past: Counts, finish: Callable[[Counts, Sequence[int], int], None]
    ) -> None:
        self.tokens: list[int] = []
        self.context, self.past = Counts(), past
        self._n_prompt = len(prompt)
        self._finish = finish
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        start = len(self.tokens)
        self.tokens += tokens
        self.context.add(self.tokens, start)

    def update(self, step: Step, features: Features) -> None:
        self.extend(step.tokens)

    def close(self) -> None:
        """Learn the emitted tokens."""
        self._finish(self.past, self.tokens, self._n_prompt)
        self.tokens = []
        self.context.forget()


class NgramDrafter(SingleDrafter):
    """A drafter by n-gram counts.
    static: counts of a corpus.
    n_vocab: the target's vocabulary size.
    limit: n-grams of past outputs; beyond it the rarest are dropped.
    Raises VocabError for static counts with tokens outside the target's vocabulary."""

    name = "ngram"

    def __init__(
        self, static: NgramCache | None = None, *, n_vocab: int | None = None, limit: int = MAX_LEARNED_TOKENS
    ) -> None:
        if static is not None and n_vocab is not None and static.span() > n_vocab:
            raise VocabError(
                f"the static n-gram cache holds token {static.span() - 1:,}, the target has {n_vocab:,}: it "
                "was made with another tokenizer; make one with the target's"
            )
        self._static = static
        self._common = Counts()
        self._past = Scopes(self._common, Counts)
        self._limit = limit

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> NgramState:
        return NgramState(prompt, self._past.of(scope), self._learn)

    def learn(self, tokens: Sequence[int]) -> None:
        self._learn(self._common, tokens, 0)

    def forget(self) -> None:
        for past in self._past:
            past.forget()

    def _learn(self, past: Counts, tokens: Sequence[int], start: int) -> None:
        past.add(tokens, start)
        if len(past) > self._limit:
            least = 2
            while len(past) > self._limit // 2:
                past.thin(least)
                least *= 2

    def _draft(self, state: NgramState, budget: Budget) -> DraftTree:
        if len(state.tokens) < STATIC_NGRAM_LENGTH or min(budget.depth, budget.nodes) < 1:
            return EMPTY

        def follow(tail: list[int], _: int) -> Iterator[tuple[int, float, list[int]]]:
            for i, (token, share, score) in enumerate(self._candidates(state, tail, budget.width)):
                # The first has at least half of the counts: if it is below p_min, so are the others.
                if share >= (budget.p_split if i else budget.p_min):
                    yield token, score, [*tail[1 - NGRAM_MAX :], token]
                elif i == 0:
                    return

        return best_first(budget, self.name, state.tokens[-NGRAM_MAX:], follow)

    def _candidates(self, state: NgramState, tail: list[int], width: int) -> Sequence[Candidate]:
        """Return up to `width` candidates after `tail`, best first, from the first counts that have any."""
        judge = tuple(tail[-STATIC_NGRAM_LENGTH:])
        for cache, rule in ((state.context, LAX_THRESHOLDS), (state.past, STRICT_THRESHOLDS)):
            for n in range(min(NGRAM_MAX, len(tail)), 0, -1):
                candidates = self._rank(cache, tuple(tail[-n:]), rule[n - 1], judge, width)
                if candidates:
                    return candidates
        if self._static is None:
            return ()
        return self._rank(self._static, judge, LAX_THRESHOLDS[STATIC_NGRAM_LENGTH - 1], (), width)

    def _rank(
        self,
        cache: NgramCache | Counts,
        ngram: tuple[int, ...],
        rule: tuple[int, int],
        judge: tuple[int, ...],
        width: int,
    ) -> Sequence[Candidate]:
        """Return llama.cpp's choice and the others by rank, or nothing if the thresholds are not met."""
        tokens, counts = cache.continuations(ngram)
        total, (fewest, percent) = sum(counts), rule
        if total < fewest or not tokens:
            return ()
        weights = counts
        if judge and len(tokens) > 1 and self._static is not None:
            static = dict(zip(*self._static.continuations(judge), strict=True))
            weights = [c * 100 * static[t] if t in static else c for t, c in zip(tokens, counts, strict=True)]
        # Of ties the last to appear, which llama.cpp's hash tables return first.
        best = len(weights) - 1 - weights[::-1].index(max(weights))
        if 100 * counts[best] < percent * total:
            return ()
        doubt = 2.0 ** (3 - len(ngram))
        chosen = [(tokens[best], counts[best] / total, counts[best] / (total + doubt))]
        if width > 1:
            others = (i for i in range(len(tokens)) if i != best)
            ranked = heapq.nlargest(width - 1, others, key=lambda i: (weights[i], i))
            chosen += [(tokens[i], counts[i] / total, counts[i] / (total + doubt)) for i in ranked]
        return chosen


def make(parts: DrafterInputs) -> NgramDrafter:
    static = [NgramCache.read(path) for path in parts.caches]
    merged = static[0].merge(*static[1:]) if len(static) > 1 else next(iter(static), None)
    return NgramDrafter(merged, n_vocab=parts.target.vocab.size)
