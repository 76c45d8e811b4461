"""Retrieval from a corpus: what followed the longest ending of the text found there (REST: He et al.,
arXiv:2311.08252).

Places are sampled evenly, and their continuations counted into a tree, likeliest paths first. The corpus is
shared and never changes; a request keeps only its last few tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

from paceline.drafters.parts import DrafterInputs, SingleDrafter, best_first
from paceline.drafters.suffix_array import Match, SuffixArray
from paceline.speculative.interfaces import Budget, Features, Session
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, DraftTree

# A continuation seen once after a match of so many tokens is right half of the time; the doubt falls with the
# square of the match length. Fitted by log-loss on code, and checked on agents' sessions.
HALF_TRUST_LENGTH = 6.0

# (tokens, each one larger than its id; count) of the continuations that agree with a path.
MatchingContinuations = list[tuple[tuple[int, ...], int]]


class DatastoreState:
    """The last tokens of a request."""

    def __init__(self, prompt: Sequence[int], match_max: int) -> None:
        self.tokens = deque(prompt[-match_max:], maxlen=match_max)

    def update(self, step: Step, features: Features) -> None:
        self.tokens.extend(step.tokens)

    def close(self) -> None:
        self.tokens.clear()


class DatastoreDrafter(SingleDrafter):
    """A drafter that looks the text up in corpora.
    stores: opened corpora of the target's tokenizer, closed with the drafter.
    match_min, match_max: length of the ending that is looked up.
    samples: the most places to read."""

    name = "datastore"

    def __init__(
        self, stores: Sequence[SuffixArray], match_min: int = 3, match_max: int = 16, samples: int = 16
    ) -> None:
        self._stores = list(stores)
        self._match_min, self._match_max, self._samples = match_min, match_max, samples

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> DatastoreState:
        return DatastoreState(prompt, self._match_max)

    def _draft(self, state: DatastoreState, budget: Budget) -> DraftTree:
        depth = min(budget.depth, budget.nodes)
        if depth < 1 or len(state.tokens) < self._match_min:
            return EMPTY
        length, followed = self.look_up(state.tokens, depth)
        return best_first(budget, self.name, followed, partial(_ranked_next_tokens, length, budget))

    def look_up(self, context: Sequence[int], depth: int) -> tuple[int, MatchingContinuations]:
        """Return the length of the longest match, and its continuations of up to `depth` tokens."""
        length = self._match_min
        places: list[tuple[SuffixArray, Match]] = []
        for store in self._stores:
            match = store.find(store.encode(context))
            if match.length > length:
                length, places = match.length, []
            if match.length == length:
                places.append((store, match))
        total = sum(match.high - match.low for _, match in places)
        followed: MatchingContinuations = []
        for store, match in places:
            most = max(1, round(self._samples * (match.high - match.low) / total))
            followed += [
                (store.decode(data), n) for data, n in store.sample_continuations(match, most, depth).items()
            ]
        return length, followed

    def close(self) -> None:
        for store in self._stores:
            store.close()


def _ranked_next_tokens(
    length: int, budget: Budget, alive: MatchingContinuations, depth: int
) -> Iterator[tuple[int, float, MatchingContinuations]]:
    """Yield the tokens at `depth`, most frequent first, with scores and the continuations that agree.
    A score is the share of the continuations, less for few continuations of a short match."""
    total = sum(n for _, n in alive)
    groups: dict[int, MatchingContinuations] = {}
    for entry in alive:
        if len(entry[0]) > depth:
            groups.setdefault(entry[0][depth], []).append(entry)
    counted = [(sum(n for _, n in group), token, group) for token, group in groups.items()]
    counted.sort(key=lambda entry: (-entry[0], entry[1]))
    doubt = (HALF_TRUST_LENGTH / (length + depth)) ** 2
    for rank, (count, token, group) in enumerate(counted[: budget.width]):
        score = count / (total + doubt)
        if score < budget.p_min or (rank > 0 and score < budget.p_split):
            return
        yield token - 1, score, group


def make(parts: DrafterInputs) -> DatastoreDrafter:
    return DatastoreDrafter([SuffixArray(folder) for folder in parts.stores])
